// SPDX-License-Identifier: Apache-2.0
//
// varve export: writes a checkpoint as safetensors, in bounded memory and never half.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/formats/output_file.h"
#include "cli/formats/safetensors.h"
#include "cli/formats/safetensors_index.h"
#include "cli/metadata.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "store/step_expr.h"
#include "cli/tensor_stream.h"
#include "store/glob.h"
#include "varve/store.h"

namespace varve::cli {
namespace {

using formats::OutputFile;

struct ExportOptions {
  std::string step;
  std::filesystem::path out;
  std::string format = "safetensors";
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  std::string max_shard_size;
  bool force = false;
};

// One file to be written.
struct ExportFile {
  std::filesystem::path path;
  std::vector<TensorInfo> tensors;
};

struct ExportPlan {
  std::vector<ExportFile> files;
  std::optional<std::filesystem::path> index;  // when there are several files
  formats::SafetensorsMetadata metadata;
  uint64_t num_tensors = 0;
  uint64_t total_bytes = 0;
};

bool MatchesAny(const std::vector<std::string>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(),
                     [&name](const std::string& glob) { return MatchesGlob(glob, name); });
}

// The tensors that the globs choose, in the order of the file.
Result<std::vector<TensorInfo>> ChooseTensors(const CheckpointReader& reader,
                                              const ExportOptions& options) {
  VARVE_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, reader.List());
  std::erase_if(tensors, [&options](const TensorInfo& tensor) {
    const bool included = options.include.empty() || MatchesAny(options.include, tensor.name);
    return !included || MatchesAny(options.exclude, tensor.name);
  });
  if (tensors.empty() && !(options.include.empty() && options.exclude.empty())) {
    return Status::NotFound("no tensor of step " + HumanId(reader.info().id) +
                            " is chosen by --include and --exclude");
  }
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name != tensors[i - 1].name) continue;
    return Status(StatusCode::kFailedPrecondition,
                  "tensor \"" + tensors[i].name +
                      "\" is saved in several shards, which safetensors cannot hold");
  }
  formats::SortForSafetensors(&tensors);
  return tensors;
}

// A folder stands for a file in it that has the usual name.
std::filesystem::path FilePath(const std::filesystem::path& out) {
  std::error_code ignored;
  const bool is_folder = !out.has_filename() || std::filesystem::is_directory(out, ignored);
  return is_folder ? out / "model.safetensors" : out;
}

Result<ExportPlan> Plan(const CheckpointReader& reader, const ExportOptions& options) {
  ExportPlan plan;
  uint64_t max_bytes = UINT64_MAX;
  if (!options.max_shard_size.empty()) {
    VARVE_ASSIGN_OR_RETURN(max_bytes, ParseByteSize(options.max_shard_size));
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<TensorInfo> tensors, ChooseTensors(reader, options));
  plan.num_tensors = tensors.size();
  for (const TensorInfo& tensor : tensors) plan.total_bytes += tensor.logical_bytes;
  VARVE_ASSIGN_OR_RETURN(const std::optional<TrainerState> state, reader.ReadTrainerState());
  if (state) plan.metadata = MetadataFromState(*state);
  auto groups = formats::SplitBySize(tensors, max_bytes);
  const std::filesystem::path path = FilePath(options.out);
  for (size_t i = 0; i < groups.size(); ++i) {
    plan.files.push_back(
        {groups.size() == 1 ? path : formats::ShardFileName(path, i + 1, groups.size()),
         std::move(groups[i])});
  }
  if (groups.size() > 1) plan.index = formats::IndexFileName(path);
  return plan;
}

Result<OutputFile> WriteFile(const CheckpointReader& reader, const ExportFile& file,
                             const ExportPlan& plan, bool force, uint64_t* done,
                             ProgressBar* progress) {
  VARVE_ASSIGN_OR_RETURN(OutputFile output, OutputFile::Create(file.path, force));
  VARVE_ASSIGN_OR_RETURN(const std::string header,
                         formats::BuildSafetensorsHeader(file.tensors, plan.metadata));
  VARVE_RETURN_IF_ERROR(output.Append(header));
  TensorStream stream(reader, [&](std::span<const std::byte> bytes) {
    *done += bytes.size();
    progress->Update(*done, plan.total_bytes);
    return output.Append(bytes);
  });
  for (const TensorInfo& tensor : file.tensors) VARVE_RETURN_IF_ERROR(stream.Add(tensor));
  VARVE_RETURN_IF_ERROR(stream.Finish());
  return output;
}

Result<OutputFile> WriteIndex(const ExportPlan& plan, bool force) {
  formats::WeightMap weight_map;
  for (const ExportFile& file : plan.files) {
    for (const TensorInfo& tensor : file.tensors) {
      weight_map.emplace(tensor.name, file.path.filename().string());
    }
  }
  VARVE_ASSIGN_OR_RETURN(OutputFile output, OutputFile::Create(*plan.index, force));
  VARVE_RETURN_IF_ERROR(
      output.Append(formats::BuildSafetensorsIndex(weight_map, plan.total_bytes)));
  return output;
}

// All files are whole before the first gets its name, and the index comes last.
Status WriteAll(const Context& context, const CheckpointReader& reader, const ExportPlan& plan,
                bool force) {
  ProgressBar progress("export", context.quiet());
  uint64_t done = 0;
  std::vector<OutputFile> outputs;
  for (const ExportFile& file : plan.files) {
    VARVE_ASSIGN_OR_RETURN(OutputFile output,
                           WriteFile(reader, file, plan, force, &done, &progress));
    outputs.push_back(std::move(output));
  }
  if (plan.index) {
    VARVE_ASSIGN_OR_RETURN(OutputFile output, WriteIndex(plan, force));
    outputs.push_back(std::move(output));
  }
  for (OutputFile& output : outputs) VARVE_RETURN_IF_ERROR(output.Commit());
  return Status::Ok();
}

// Opaque items have no place in the format.
Status NoteWhatStays(const Context& context, const CheckpointReader& reader) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> items, reader.ListBytes());
  if (!items.empty()) {
    context.Note(Count(items.size(), "opaque item") + " not exported: safetensors holds tensors");
  }
  return Status::Ok();
}

void PrintReport(const Context& context, const CheckpointId& id, const ExportPlan& plan) {
  std::vector<std::string> names;
  for (const ExportFile& file : plan.files) names.push_back(file.path.string());
  if (plan.index) names.push_back(plan.index->string());
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"run", id.run},
                                             {"step", id.step},
                                             {"tensors", plan.num_tensors},
                                             {"logical_bytes", plan.total_bytes},
                                             {"files", names}});
  } else if (!context.quiet()) {
    context.PrintText(Count(plan.num_tensors, "tensor") + ", " + HumanBytes(plan.total_bytes) +
                      ", written to " + Printable(Join(names, ", ")) + "\n");
  }
}

Outcome RunExport(const Context& context, const Store& store, const ExportOptions& options) {
  const auto id = ResolveStep(store, options.step);
  if (!id.ok()) return id.status();
  const auto reader = store.OpenCheckpoint(id->run, id->step);
  if (!reader.ok()) return reader.status();
  const Result<ExportPlan> plan = Plan(**reader, options);
  if (!plan.ok()) return plan.status();
  const Status status = WriteAll(context, **reader, *plan, options.force);
  if (status.code() == StatusCode::kAlreadyExists) {
    return status.WithContext("use --force to overwrite");
  }
  if (!status.ok()) return status;
  if (const Status noted = NoteWhatStays(context, **reader); !noted.ok()) return noted;
  PrintReport(context, *id, *plan);
  return {};
}

constexpr char kNotes[] =
    R"(With --max-shard-size and more than one file, an index is written last. Files
appear whole or not at all.

JSON: run step tensors logical_bytes files)";

}  // namespace

void AddExport(CLI::App& app, Context& context) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* verb = app.add_subcommand("export", "Write a checkpoint in a format others read");
  verb->add_option("STEP", options->step, kStepHelp)->required();
  verb->add_option("-o,--output", options->out, "The file, or a folder for model.safetensors")
      ->type_name("OUT")
      ->required();
  verb->add_option("--format", options->format, "The format to write")
      ->check(CLI::IsMember({"safetensors"}))
      ->capture_default_str();
  verb->add_option("--include", options->include, "Only tensors that match; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option("--exclude", options->exclude, "No tensors that match; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option("--max-shard-size", options->max_shard_size,
                   "Cut into files of at most so many bytes of tensors: 5GB")
      ->type_name("BYTES");
  verb->add_flag("--force", options->force, "Overwrite existing files");
  verb->footer(kNotes);
  context.OnReading(verb, [&context, options](const Store& store) {
    return RunExport(context, store, *options);
  });
}

}  // namespace varve::cli
