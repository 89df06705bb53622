// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"

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
