// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/foreign/import_files.h"
#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

// The report, and what the user should know.
std::pair<SaveReport, std::vector<std::string>> Import(
    const std::shared_ptr<StoreHandle>& store, const std::vector<std::string>& files,
    const std::string& format, std::optional<uint64_t> step, const std::string& run,
    std::string_view on_existing, std::optional<uint64_t> parent,
    const std::vector<std::string>& tags, const nb::object& progress) {
  internal::cli::ImportRequest request{.files = {files.begin(), files.end()},
                                       .format = format,
                                       .step = step,
                                       .tags = tags,
                                       .save = {.run = run,
                                                .on_existing = ParseOnExisting(on_existing),
                                                .parent = parent,
                                                .progress = MakeProgress(progress)}};
  std::vector<std::string> notes;
  SaveReport report = store->WithLong([&](Store& s) {
    return ValueOrThrow(internal::cli::ImportFiles(&s, std::move(request), &notes));
  });
  return {std::move(report), std::move(notes)};
}

}  // namespace

void BindImport(nb::module_& module) {
  module.def("import_files", Import, nb::arg("store"), nb::arg("files"), nb::arg("format"),
             nb::arg("step").none(), nb::arg("run"), nb::arg("on_existing"),
             nb::arg("parent").none(), nb::arg("tags"), nb::arg("progress").none(),
             "Saves what files of other formats hold. Returns the report and notes for the user.");
}

}  // namespace varve::python
