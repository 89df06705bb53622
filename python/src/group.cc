// SPDX-License-Identifier: Apache-2.0
#include "varve/group.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <memory>
#include <string>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

uint64_t StartEpoch(const std::string& root, uint32_t num_ranks) {
  NoteOpen();
  CheckMayWrite();
  const nb::gil_scoped_release release;
  return ValueOrThrow(Group::StartEpoch(root, num_ranks));
}

std::shared_ptr<StoreHandle> Join(const std::string& root, uint32_t rank, uint64_t epoch,
                                  int64_t timeout_ms, std::string_view compression,
                                  uint64_t pipeline_budget_bytes, int num_threads) {
  NoteOpen();
  CheckMayWrite();
  const JoinOptions options{.rank = rank,
                            .epoch = epoch,
                            .timeout = std::chrono::milliseconds(timeout_ms),
                            .store = {.compression = ParseCompression(compression),
                                      .pipeline_budget_bytes = pipeline_budget_bytes,
                                      .num_threads = num_threads}};
  const nb::gil_scoped_release release;
  return std::make_shared<StoreHandle>(ValueOrThrow(Group::Join(root, options)), root);
}

}  // namespace

void BindGroup(nb::module_& module) {
  module.def("start_epoch", StartEpoch, nb::arg("root"), nb::arg("num_ranks"));
  module.def("join", Join, nb::arg("root"), nb::arg("rank"), nb::arg("epoch"),
             nb::arg("timeout_ms"), nb::arg("compression"), nb::arg("pipeline_budget_bytes"),
             nb::arg("num_threads"));
  module.def(
      "is_group", [](const std::string& path) { return Group::IsRoot(path); }, nb::arg("path"));
}

}  // namespace varve::python
