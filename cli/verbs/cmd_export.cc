// SPDX-License-Identifier: Apache-2.0
//
// varve export: writes a checkpoint in a format others read, in bounded memory and never half.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/foreign/export_files.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

struct ExportOptions {
  std::string step;
  std::filesystem::path map;
  std::string max_shard_size;
  ExportFilesRequest request;
};

void PrintReport(const Context& context, const CheckpointId& id, const ExportedFiles& exported) {
  std::vector<std::string> names;
  for (const std::filesystem::path& path : exported.files) names.push_back(path.string());
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"run", id.run},
                                             {"step", id.step},
                                             {"tensors", exported.num_tensors},
                                             {"logical_bytes", exported.logical_bytes},
                                             {"files", names}});
  } else if (!context.quiet()) {
    context.PrintText(Count(exported.num_tensors, "tensor") + ", " +
                      HumanBytes(exported.logical_bytes) + ", written to " +
                      Printable(Join(names, ", ")) + "\n");
  }
}

// Reads the values of the text options.
Result<ExportFilesRequest> MakeRequest(const ExportOptions& options) {
  ExportFilesRequest request = options.request;
  if (!options.max_shard_size.empty()) {
    VARVE_ASSIGN_OR_RETURN(request.max_shard_bytes, ParseByteSize(options.max_shard_size));
  }
  if (!options.map.empty()) {
    VARVE_RETURN_IF_ERROR(request.names.emplace().AddFile(options.map).WithContext("--map"));
  }
  return request;
}

Result<ExportedFiles> ExportWithBar(const Context& context, const CheckpointReader& reader,
                                    ExportFilesRequest request) {
  ProgressBar progress("export", context.quiet());
  request.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  return ExportFiles(reader, request);
}

Outcome RunExport(const Context& context, const Store& store, const ExportOptions& options) {
  const auto id = store.Resolve(options.step);
  if (!id.ok()) return id.status();
  const auto reader = store.OpenCheckpoint(id->run, id->step);
  if (!reader.ok()) return reader.status();
  Result<ExportFilesRequest> request = MakeRequest(options);
  if (!request.ok()) return request.status();
  const Result<ExportedFiles> exported = ExportWithBar(context, **reader, *std::move(request));
  if (exported.status().code() == StatusCode::kAlreadyExists) {
    return exported.status().WithContext("use --force to overwrite");
  }
  if (!exported.ok()) return exported.status();
  for (const std::string& note : exported->notes) context.Note(note);
  PrintReport(context, *id, *exported);
  return {};
}

constexpr char kExportNotes[] =
    R"(With --max-shard-size and more than one file, an index is written last. Files
appear whole or not at all, in folders that are made if missing. --force also
removes what an earlier export of that name has left: shards of another number,
their index, or the one file.

--map renames tensors: a line "from to" renames the tensor from, and tensors
whose names start with from and a dot. --include and --exclude match the names
in the store. Two tensors that would get one name are an error.

infinitrain: OUT is the folder for model.ckpt, optimizer.ckpt and
trainer_state.json, made if missing. llmc: OUT is a folder for model_STEP.bin
and state_STEP_RANK.bin (made if it ends in a slash), or the name of the model
file; the step must have been imported from llm.c. What was imported from either
comes out byte for byte.

dcp: OUT is a folder that dcp.load of PyTorch reads, with the values of a step
that came from DCP. npz: OUT is the file. Types that NumPy lacks, such as BF16,
are written as the bits of their elements, and a note names them.

JSON: run step tensors logical_bytes files)";

}  // namespace

void AddExport(CLI::App& app, Context& context) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* verb = app.add_subcommand("export", "Write a checkpoint in a format others read");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->add_option("-o,--output", options->request.out,
                   "The file, or a folder for files with the usual names")
      ->type_name("OUT")
      ->required();
  verb->add_option("--format", options->request.format, "The format to write")
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(kExportFormats), std::end(kExportFormats))))
      ->capture_default_str();
  verb->add_option("--include", options->request.include,
                   "Only tensors that match; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option("--exclude", options->request.exclude, "No tensors that match; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option("--map", options->map,
                   "A file of \"NAME NEW-NAME\" lines, for other names in OUT")
      ->type_name("FILE");
  verb->add_option("--max-shard-size", options->max_shard_size,
                   "Cut into files of at most so many bytes of tensors: 5GB")
      ->type_name("BYTES");
  verb->add_flag("--force", options->request.overwrite, "Overwrite existing files");
  verb->footer(kExportNotes);
  context.OnReading(verb, [&context, options](const Store& store) {
    return RunExport(context, store, *options);
  });
}

}  // namespace varve::internal::cli
