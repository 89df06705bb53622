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

#include "cli/foreign/export_files.h"
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

// The names of the files, and what the user should know.
std::pair<std::vector<std::string>, std::vector<std::string>> Export(
    ReaderHandle* reader, const std::string& out, const std::string& format,
    const std::vector<std::string>& include, const std::vector<std::string>& exclude,
    std::optional<uint64_t> max_shard_bytes, bool overwrite, const nb::object& progress) {
  const internal::cli::ExportFilesRequest request{.out = out,
                                                  .format = format,
                                                  .include = include,
                                                  .exclude = exclude,
                                                  .names = {},
                                                  .max_shard_bytes = max_shard_bytes,
                                                  .overwrite = overwrite,
                                                  .progress = MakeProgress(progress)};
  internal::cli::ExportedFiles exported = reader->WithLong(
      [&](CheckpointReader& r) { return ValueOrThrow(internal::cli::ExportFiles(r, request)); });
  std::vector<std::string> files;
  for (const auto& file : exported.files) files.push_back(file.string());
  return {std::move(files), std::move(exported.notes)};
}

}  // namespace

void BindForeign(nb::module_& module) {
  module.def("import_files", Import, nb::arg("store"), nb::arg("files"), nb::arg("format"),
             nb::arg("step").none(), nb::arg("run"), nb::arg("on_existing"),
             nb::arg("parent").none(), nb::arg("tags"), nb::arg("progress").none(),
             "Saves what files of other formats hold. Returns the report and notes for the user.");
  module.def("export_files", Export, nb::arg("reader"), nb::arg("out"), nb::arg("format"),
             nb::arg("include"), nb::arg("exclude"), nb::arg("max_shard_bytes").none(),
             nb::arg("overwrite"), nb::arg("progress").none(),
             "Writes a checkpoint in another format. Returns the files and notes for the user.");
}

}  // namespace varve::python
