// SPDX-License-Identifier: Apache-2.0
//
// varve export: writes a checkpoint in a format others read, in bounded memory and never half.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/glob.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/foreign/export_plan.h"
#include "cli/foreign/part_sink.h"
#include "cli/formats/output_file.h"
#include "cli/parse.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/tensor_stream.h"
#include "varve/name_map.h"
#include "varve/store.h"

namespace varve::internal::cli {
namespace {

using formats::OutputFile;

constexpr char kSafetensors[] = "safetensors";
constexpr char kInfiniTrain[] = "infinitrain";
constexpr char kLlmc[] = "llmc";
constexpr char kDcp[] = "dcp";
constexpr char kNpz[] = "npz";

struct ExportOptions {
  std::string step;
  std::filesystem::path out;
  std::string format = kSafetensors;
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  std::filesystem::path map;
  std::string max_shard_size;
  bool force = false;
};

bool MatchesAny(const std::vector<std::string>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(),
                     [&name](const std::string& glob) { return MatchesGlob(glob, name); });
}

// The tensors that the globs choose, by name and shard.
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
  return tensors;
}

// Notes pairs of the map that match no tensor of the step. They may have a typing error.
Status NotePairsWithoutUse(const CheckpointReader& reader, const NameMap& map,
                           std::vector<std::string>* notes) {
  constexpr size_t kShown = 5;
  VARVE_ASSIGN_OR_RETURN(const std::vector<TensorInfo> tensors, reader.List());
  std::vector<std::string> names;
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  std::vector<std::string> unused = map.PairsWithoutUse(names);
  if (unused.empty()) return Status::Ok();
  std::string note = "--map: " + Count(unused.size(), "name") + " not in the step: ";
  const bool is_more = unused.size() > kShown;
  if (is_more) unused.resize(kShown);
  notes->push_back(note + Join(unused, ", ") + (is_more ? ", ..." : ""));
  return Status::Ok();
}

// Gives the tensors the names of the map. Two tensors must not get one name.
Status Rename(const NameMap& map, ExportRequest* request) {
  std::map<std::string, std::string> stored_by_name;
  for (TensorInfo& tensor : request->tensors) {
    std::string name = map.Apply(tensor.name);
    VARVE_RETURN_IF_ERROR(ValidateName("tensor name", name).WithContext("--map: " + tensor.name));
    const auto [other, is_new] = stored_by_name.try_emplace(name, tensor.name);
    if (!is_new && other->second != tensor.name) {
      return Status::InvalidArgument("--map: tensors " + other->second + " and " + tensor.name +
                                     " would both be named " + name + ", expected other names");
    }
    if (name != tensor.name) request->stored_names[name] = tensor.name;
    tensor.name = std::move(name);
  }
  std::sort(request->tensors.begin(), request->tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::tie(a.name, a.shard) < std::tie(b.name, b.shard);
            });
  return Status::Ok();
}

Result<ExportPlan> PlanFormat(const std::string& format, ExportRequest request) {
  if (format == kInfiniTrain) return PlanInfiniTrain(std::move(request));
  if (format == kLlmc) return PlanLlmc(std::move(request));
  if (format == kDcp) return PlanDcp(std::move(request));
  if (format == kNpz) return PlanNpz(std::move(request));
  return PlanSafetensors(std::move(request));
}

Result<ExportPlan> Plan(const CheckpointReader& reader, const ExportOptions& options) {
  ExportRequest request{.reader = reader, .tensors = {}, .out = options.out};
  if (!options.max_shard_size.empty()) {
    if (options.format != kSafetensors) {
      return Status::InvalidArgument("--max-shard-size goes with --format safetensors only");
    }
    VARVE_ASSIGN_OR_RETURN(request.max_shard_bytes, ParseByteSize(options.max_shard_size));
  }
  VARVE_ASSIGN_OR_RETURN(request.tensors, ChooseTensors(reader, options));
  std::vector<std::string> notes;
  if (!options.map.empty()) {
    if (options.format == kLlmc) {
      return Status::InvalidArgument("--map does not go with --format llmc, which has no names");
    }
    NameMap map;
    VARVE_RETURN_IF_ERROR(map.AddFile(options.map).WithContext("--map"));
    VARVE_RETURN_IF_ERROR(NotePairsWithoutUse(reader, map, &notes));
    VARVE_RETURN_IF_ERROR(Rename(map, &request));
  }
  const auto stored_names = request.stored_names;
  VARVE_ASSIGN_OR_RETURN(ExportPlan plan, PlanFormat(options.format, std::move(request)));
  plan.stored_names = stored_names;
  plan.notes.insert(plan.notes.end(), notes.begin(), notes.end());
  return plan;
}

// The folder of a plan and the folders above it. They are made if missing, and removed again when
// nothing was put into them.
class ExportFolder {
 public:
  Status Make(const std::filesystem::path& folder) {
    const std::filesystem::path parent = folder.parent_path();
    std::error_code error;
    if (folder.empty() || std::filesystem::is_directory(folder, error)) return Status::Ok();
    if (parent != folder) VARVE_RETURN_IF_ERROR(Make(parent));
    error.clear();
    if (std::filesystem::create_directory(folder, error)) made_.push_back(folder);
    if (!error) return Status::Ok();
    return Status::IOError(folder.string() + ": " + error.message());
  }
  ~ExportFolder() {
    std::error_code ignored;  // as when it is not empty
    while (!made_.empty()) {
      std::filesystem::remove(made_.back(), ignored);
      made_.pop_back();
    }
  }

 private:
  std::vector<std::filesystem::path> made_;
};

// Returns the tensor as the store knows it.
TensorInfo StoredTensor(const ExportPlan& plan, TensorInfo tensor) {
  const auto stored = plan.stored_names.find(tensor.name);
  if (stored != plan.stored_names.end()) tensor.name = stored->second;
  return tensor;
}

Result<OutputFile> WriteFile(const CheckpointReader& reader, const ExportPlan& plan,
                             const ExportFile& file, bool force,
                             const std::function<void(uint64_t)>& wrote) {
  VARVE_ASSIGN_OR_RETURN(OutputFile output, OutputFile::Create(file.path, force));
  PartSink sink(file.parts, [&](std::span<const std::byte> bytes) {
    wrote(bytes.size());
    return output.Append(bytes);
  });
  TensorStream stream(reader,
                      [&sink](std::span<const std::byte> bytes) { return sink.Write(bytes); });
  for (const ExportPart& part : file.parts) {
    if (const auto* tensor = std::get_if<TensorInfo>(&part)) {
      VARVE_RETURN_IF_ERROR(stream.Add(StoredTensor(plan, *tensor)));
    } else if (const auto* later = std::get_if<CrcText>(&part)) {
      VARVE_RETURN_IF_ERROR(stream.AddText(std::string(later->size, '\0')));
    } else {
      VARVE_RETURN_IF_ERROR(stream.AddText(std::get<std::string>(part)));
    }
  }
  VARVE_RETURN_IF_ERROR(stream.Finish());
  return output;
}

Status RemoveLeftovers(const Context& context, std::span<const std::filesystem::path> leftovers) {
  for (const std::filesystem::path& path : leftovers) {
    std::error_code error;
    if (!std::filesystem::remove(path, error) && error) {
      return Status::IOError(path.string() + ": " + error.message() +
                             "; it is of an earlier export, and readers would take it for a part "
                             "of this one: remove it");
    }
    context.Note("removed " + path.string() + ", which was of an earlier export");
  }
  return Status::Ok();
}

// All files are whole before the first gets its final name.
Status WriteAll(const Context& context, const CheckpointReader& reader, const ExportPlan& plan,
                bool force) {
  ExportFolder folder;
  if (plan.folder) VARVE_RETURN_IF_ERROR(folder.Make(*plan.folder));
  for (const ExportFile& file : plan.files) {
    VARVE_RETURN_IF_ERROR(folder.Make(file.path.parent_path()));
  }
  ProgressBar progress("export", context.quiet());
  uint64_t done = 0;
  uint64_t total = plan.TotalBytes();
  std::vector<OutputFile> outputs;
  for (const ExportFile& file : plan.files) {
    VARVE_ASSIGN_OR_RETURN(OutputFile output,
                           WriteFile(reader, plan, file, force, [&](uint64_t bytes) {
                             done += bytes;
                             progress.Update(std::min(done, total), total);
                           }));
    outputs.push_back(std::move(output));
  }
  for (OutputFile& output : outputs) VARVE_RETURN_IF_ERROR(output.Commit());
  return force ? RemoveLeftovers(context, plan.leftovers) : Status::Ok();
}

void PrintReport(const Context& context, const CheckpointId& id, const ExportPlan& plan) {
  std::vector<std::string> names;
  for (const ExportFile& file : plan.files) names.push_back(file.path.string());
  if (context.json()) {
    context.PrintJson(nlohmann::ordered_json{{"run", id.run},
                                             {"step", id.step},
                                             {"tensors", plan.NumTensors()},
                                             {"logical_bytes", plan.TotalBytes()},
                                             {"files", names}});
  } else if (!context.quiet()) {
    context.PrintText(Count(plan.NumTensors(), "tensor") + ", " + HumanBytes(plan.TotalBytes()) +
                      ", written to " + Printable(Join(names, ", ")) + "\n");
  }
}

Outcome RunExport(const Context& context, const Store& store, const ExportOptions& options) {
  const auto id = store.Resolve(options.step);
  if (!id.ok()) return id.status();
  const auto reader = store.OpenCheckpoint(id->run, id->step);
  if (!reader.ok()) return reader.status();
  const Result<ExportPlan> plan = Plan(**reader, options);
  if (!plan.ok()) return plan.status();
  if (!options.force && !plan->leftovers.empty()) {
    return Status::AlreadyExists("use --force to overwrite: " + plan->leftovers.front().string() +
                                 " is of an earlier export, and readers would take it for a part "
                                 "of this one");
  }
  const Status status = WriteAll(context, **reader, *plan, options.force);
  if (status.code() == StatusCode::kAlreadyExists) {
    return status.WithContext("use --force to overwrite");
  }
  if (!status.ok()) return status;
  for (const std::string& note : plan->notes) context.Note(note);
  PrintReport(context, *id, *plan);
  return {};
}

constexpr char kNotes[] =
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
  verb->add_option("-o,--output", options->out,
                   "The file, or a folder for files with the usual names")
      ->type_name("OUT")
      ->required();
  verb->add_option("--format", options->format, "The format to write")
      ->check(CLI::IsMember({kSafetensors, kInfiniTrain, kLlmc, kDcp, kNpz}))
      ->capture_default_str();
  verb->add_option("--include", options->include, "Only tensors that match; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option("--exclude", options->exclude, "No tensors that match; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option("--map", options->map,
                   "A file of \"NAME NEW-NAME\" lines, for other names in OUT")
      ->type_name("FILE");
  verb->add_option("--max-shard-size", options->max_shard_size,
                   "Cut into files of at most so many bytes of tensors: 5GB")
      ->type_name("BYTES");
  verb->add_flag("--force", options->force, "Overwrite existing files");
  verb->footer(kNotes);
  context.OnReading(verb, [&context, options](const Store& store) {
    return RunExport(context, store, *options);
  });
}

}  // namespace varve::internal::cli
