// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

DType RequireDType(std::string_view name) {
  const std::optional<DType> dtype = ParseDType(name);
  if (!dtype) ThrowIfError(Status::InvalidArgument("no dtype is called " + std::string(name)));
  return *dtype;
}

TensorRole RequireRole(std::string_view name) {
  for (int i = 0; i < kNumTensorRoles; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (TensorRoleName(role) == name) return role;
  }
  throw StatusError(Status::InvalidArgument("role \"" + std::string(name) +
                                            "\" is not other, parameter, buffer or optimizer"));
}

void Put(WriterHandle* writer, std::string_view name, std::string_view dtype,
         const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, uintptr_t address,
         nb::object owner, std::string_view role, std::string_view derived_from,
         std::string_view alias_of) {
  const TensorView view{.name = name,
                        .dtype = RequireDType(dtype),
                        .shape = shape,
                        .data = reinterpret_cast<const void*>(address),
                        .strides = strides,
                        .derived_from = derived_from,
                        .alias_of = alias_of,
                        .role = RequireRole(role)};
  writer->With([&](CheckpointWriter& w) { ThrowIfError(w.Put(view)); });
  writer->Keep(std::move(owner));
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
           nb::arg("alias_of"),
           "Adds a tensor. `strides` counts elements, and is empty for a dense tensor.\n"
           "`address` is memory of `owner`, which lives until the save is over.")
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
