// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"
#include "python/src/torch_memory.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

// Name, address and bytes of the memory to fill, and one range an axis or none for the whole
// tensor.
using ReadTuple =
    std::tuple<std::string, uintptr_t, size_t, std::vector<std::pair<int64_t, int64_t>>>;

// A read of less is not worth the thread that an interruptible call takes.
constexpr uint64_t kLongReadBytes = uint64_t{16} << 20;

void ReadMany(ReaderHandle* reader, const std::vector<ReadTuple>& reads) {
  std::vector<std::vector<Range>> slices;
  slices.reserve(reads.size());
  std::vector<ReadRequest> requests;
  requests.reserve(reads.size());
  uint64_t total_bytes = 0;
  for (const auto& [name, address, num_bytes, ranges] : reads) {
    total_bytes += num_bytes;
    std::vector<Range>& slice = slices.emplace_back();
    for (const auto& [begin, end] : ranges) slice.push_back({begin, end});
    requests.push_back(ReadRequest::Tensor(
        name, std::span(reinterpret_cast<std::byte*>(address), num_bytes), slice));
  }
  const auto read = [&](CheckpointReader& r) { ThrowIfError(r.ReadMany(requests)); };
  if (total_bytes < kLongReadBytes) return reader->With(read);
  reader->WithLong(read);
}

std::string Describe(DType dtype, std::span<const int64_t> shape) {
  std::string text(DTypeName(dtype));
  const char* separator = " [";
  for (const int64_t length : shape) {
    text += separator + std::to_string(length);
    separator = ", ";
  }
  return text + (shape.empty() ? " []" : "]");
}

// What the checkpoint has by these names. A list of all tensors is quicker than to find many.
std::vector<TensorInfo> FindAll(const CheckpointReader& reader,
                                const std::vector<std::string>& names) {
  std::vector<TensorInfo> found;
  found.reserve(names.size());
  if (8 * names.size() <= reader.info().num_tensors) {
    for (const std::string& name : names) found.push_back(ValueOrThrow(reader.Find(name)));
    return found;
  }
  std::vector<TensorInfo> all = ValueOrThrow(reader.List());
  std::unordered_map<std::string_view, const TensorInfo*> by_name;
  by_name.reserve(all.size());
  for (const TensorInfo& info : all) by_name.emplace(info.name, &info);  // of several the first
  for (const std::string& name : names) {
    const auto it = by_name.find(name);
    found.push_back(it != by_name.end() ? *it->second : ValueOrThrow(reader.Find(name)));
  }
  return found;
}

void RequireSame(const TensorInfo& stored, const TorchMemory& memory) {
  if (stored.dtype == memory.dtype && std::ranges::equal(stored.shape, memory.shape)) return;
  ThrowIfError(Status::InvalidArgument(
      "tensor " + stored.name + " is " + Describe(stored.dtype, stored.shape) +
      ", and the array to read into is " + Describe(memory.dtype, memory.shape)));
}

using Offsets = std::vector<std::vector<int64_t>>;

// The part of a tensor that memory holds from these indices on. Empty: all of it.
std::vector<Range> SliceOf(const TensorInfo& stored, const TorchMemory& memory,
                           const std::vector<int64_t>& offsets) {
  std::vector<Range> slice;
  if (std::ranges::equal(stored.shape, memory.shape)) return slice;
  for (size_t i = 0; i < std::min(offsets.size(), memory.shape.size()); ++i) {
    slice.push_back({offsets[i], offsets[i] + memory.shape[i]});
  }
  return slice;
}

// Fills tensors of torch: whole ones, or parts of their shapes at `offsets`. False: one of them is
// not known to FindTorchMemory, or not dense, or has another dtype than its part. Nothing was read.
bool ReadTorch(ReaderHandle* reader, const std::vector<std::string>& names, const nb::list& tensors,
               const std::optional<Offsets>& offsets) {
  const size_t count = names.size();
  if (nb::len(tensors) != count || (offsets && offsets->size() != count)) {
    ThrowIfError(Status::InvalidArgument("names, tensors and offsets are of different numbers"));
  }
  std::vector<TorchMemory> memories;
  memories.reserve(count);
  uint64_t total_bytes = 0;
  for (const nb::handle tensor : tensors) {
    const std::optional<TorchMemory> memory = FindTorchMemory(tensor);
    if (!memory || !memory->strides.empty()) return false;
    total_bytes += memories.emplace_back(*memory).num_bytes();
  }
  bool have_same_types = true;
  const auto read = [&](CheckpointReader& r) {
    const std::vector<TensorInfo> infos = FindAll(r, names);
    std::vector<std::vector<Range>> slices(count);
    std::vector<ReadRequest> requests;
    requests.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const TorchMemory& memory = memories[i];
      if (!offsets) {
        RequireSame(infos[i], memory);
      } else if (infos[i].dtype != memory.dtype) {
        have_same_types = false;
        return;
      } else if (memory.num_bytes() == 0) {
        continue;
      } else {
        slices[i] = SliceOf(infos[i], memory, (*offsets)[i]);
      }
      requests.push_back(
          ReadRequest::Tensor(names[i], std::span(memory.data, memory.num_bytes()), slices[i]));
    }
    ThrowIfError(r.ReadMany(requests));
  };
  if (total_bytes < kLongReadBytes) {
    reader->With(read);
  } else {
    reader->WithLong(read);
  }
  return have_same_types;
}

nb::bytes ReadBytes(ReaderHandle* reader, std::string_view name) {
  const std::vector<std::byte> value =
      reader->With([&](CheckpointReader& r) { return ValueOrThrow(r.ReadBytes(name)); });
  return nb::bytes(value.data(), value.size());
}

}  // namespace

void BindReader(nb::module_& module) {
  nb::class_<ReaderHandle>(module, "Reader", "A checkpoint that is open for reading.")
      .def("info",
           [](ReaderHandle* reader) {
             return reader->With([](CheckpointReader& r) { return r.info(); });
           })
      .def("list_tensors",
           [](ReaderHandle* reader) {
             return reader->With([](CheckpointReader& r) { return ValueOrThrow(r.List()); });
           })
      .def(
          "find",
          [](ReaderHandle* reader, std::string_view name) {
            return reader->With([&](CheckpointReader& r) { return ValueOrThrow(r.Find(name)); });
          },
          nb::arg("name"))
      .def("read_many", ReadMany, nb::arg("reads"),
           "Fills memory: a list of (name, address, bytes, one (begin, end) an axis or none).")
      .def("read_torch", ReadTorch, nb::arg("names"), nb::arg("tensors"),
           nb::arg("offsets").none() = nb::none(),
           nb::sig("def read_torch(self, names: collections.abc.Sequence[str], tensors: "
                   "list[typing.Any], offsets: collections.abc.Sequence["
                   "collections.abc.Sequence[int]] | None = None) -> bool"),
           "Fills plain dense tensors of torch on the CPU, whole or from these offsets on. False: "
           "they\n"
           "are something else, or of other dtypes when there are offsets. Nothing was read.")
      .def("list_bytes",
           [](ReaderHandle* reader) {
             return reader->With([](CheckpointReader& r) { return ValueOrThrow(r.ListBytes()); });
           })
      .def("read_bytes", ReadBytes, nb::arg("name"))
      .def("read_progress", [](ReaderHandle* reader) {
        return reader->With(
            [](CheckpointReader& r) { return ValueOrThrow(r.ReadTrainerProgress()); });
      });
}

}  // namespace varve::python
