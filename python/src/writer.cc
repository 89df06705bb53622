// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"
#include "python/src/torch_memory.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

// Where a part of a tensor lies: the shape of the whole tensor, and the part's first index on each
// axis.
using Box = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

ShardLayout LayoutOf(const Box& box, std::span<const int64_t> shape) {
  const auto& [global_shape, offsets] = box;
  if (global_shape.size() != shape.size() || offsets.size() != shape.size()) {
    ThrowIfError(Status::InvalidArgument("a part of " + std::to_string(shape.size()) +
                                         " axes cannot lie in a tensor of " +
                                         std::to_string(global_shape.size()) + " at an offset of " +
                                         std::to_string(offsets.size())));
  }
  ShardLayout layout = ShardLayout::Whole(global_shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    layout.axes[i] = {{.begin = offsets[i], .length = shape[i]}};
  }
  return layout;
}

void Put(WriterHandle* writer, std::string_view name, std::string_view dtype,
         const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, uintptr_t address,
         nb::object owner, std::string_view role, std::string_view derived_from,
         std::string_view alias_of, uint32_t shard, const std::optional<Box>& box) {
  std::optional<ShardLayout> layout;
  if (box) layout = LayoutOf(*box, shape);
  const TensorView view{.name = name,
                        .dtype = RequireDType(dtype),
                        .shape = shape,
                        .data = reinterpret_cast<const void*>(address),
                        .strides = strides,
                        .derived_from = derived_from,
                        .alias_of = alias_of,
                        .role = RequireRole(role),
                        .shard = shard,
                        .layout = layout ? &*layout : nullptr};
  writer->WithGil([&](CheckpointWriter& w) { ThrowIfError(w.Put(view)); });
  writer->Keep(std::move(owner));
}

// False: it is no tensor that FindTorchMemory knows. Nothing was done.
bool PutTorch(WriterHandle* writer, std::string_view name, nb::handle tensor, std::string_view role,
              std::string_view derived_from, std::string_view alias_of, uint32_t shard,
              const std::optional<Box>& box) {
  const std::optional<TorchMemory> memory = FindTorchMemory(tensor);
  if (!memory) return false;
  nb::object owner = OwnerOfTorchMemory(tensor);
  std::optional<ShardLayout> layout;
  if (box) layout = LayoutOf(*box, memory->shape);
  const TensorView view{.name = name,
                        .dtype = memory->dtype,
                        .shape = memory->shape,
                        .data = memory->data,
                        .strides = memory->strides,
                        .derived_from = derived_from,
                        .alias_of = alias_of,
                        .role = RequireRole(role),
                        .shard = shard,
                        .layout = layout ? &*layout : nullptr};
  writer->WithGil([&](CheckpointWriter& w) { ThrowIfError(w.Put(view)); });
  writer->Keep(std::move(owner));
  return true;
}

void PutBytes(WriterHandle* writer, std::string_view name, const nb::bytes& value) {
  const std::span bytes(static_cast<const std::byte*>(value.data()), value.size());
  writer->With([&](CheckpointWriter& w) { ThrowIfError(w.PutBytes(name, bytes)); });
}

SaveReport Commit(WriterHandle* writer) {
  SaveReport report =
      writer->WithLong([](CheckpointWriter& w) { return ValueOrThrow(w.Commit()); });
  writer->LetGo();
  return report;
}

void Abandon(WriterHandle* writer) {
  writer->With([](CheckpointWriter& w) { w.Abandon(); });
  writer->LetGo();
}

}  // namespace

void BindWriter(nb::module_& module) {
  nb::class_<WriterHandle>(module, "Writer", "A save in progress.")
      .def("put", Put, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("strides"),
           nb::arg("address"), nb::arg("owner"), nb::arg("role"), nb::arg("derived_from"),
           nb::arg("alias_of"), nb::arg("shard") = 0, nb::arg("box").none() = nb::none(),
           "Adds a tensor. `strides` counts elements, and is empty for a dense tensor.\n"
           "`address` is memory of `owner`, which lives until the save is over. `box` says that "
           "this\n"
           "is part number `shard` of a tensor: the shape of the whole, and the part's offsets.")
      .def("put_torch", PutTorch, nb::arg("name"), nb::arg("tensor"), nb::arg("role"),
           nb::arg("derived_from"), nb::arg("alias_of"), nb::arg("shard") = 0,
           nb::arg("box").none() = nb::none(),
           nb::sig("def put_torch(self, name: str, tensor: object, role: str, derived_from: str, "
                   "alias_of: str, shard: int = 0, box: tuple[collections.abc.Sequence[int], "
                   "collections.abc.Sequence[int]] | None = None) -> bool"),
           "Adds a plain tensor of torch on the CPU. False: it is something else, for `put`.")
      .def("put_bytes", PutBytes, nb::arg("name"), nb::arg("value"))
      .def(
          "set_progress",
          [](WriterHandle* writer, const TrainerProgress& progress) {
            writer->With(
                [&](CheckpointWriter& w) { ThrowIfError(w.SetTrainerProgress(progress)); });
          },
          nb::arg("progress"))
      .def(
          "set_metric",
          [](WriterHandle* writer, std::string_view name, double value) {
            writer->With([&](CheckpointWriter& w) { ThrowIfError(w.SetMetric(name, value)); });
          },
          nb::arg("name"), nb::arg("value"))
      .def(
          "add_tag",
          [](WriterHandle* writer, std::string_view tag) {
            writer->With([&](CheckpointWriter& w) { ThrowIfError(w.AddTag(tag)); });
          },
          nb::arg("tag"))
      .def("commit", Commit)
      .def("abandon", Abandon);
}

}  // namespace varve::python
