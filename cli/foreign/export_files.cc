// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/export_files.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <variant>

#include "base/glob.h"
#include "cli/foreign/export_plan.h"
#include "cli/foreign/part_sink.h"
#include "cli/formats/output_file.h"
#include "cli/print.h"
#include "cli/tensor_stream.h"

namespace varve::internal::cli {
namespace {

using formats::OutputFile;

bool MatchesAny(const std::vector<std::string>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(),
                     [&name](const std::string& glob) { return MatchesGlob(glob, name); });
}

// The tensors that the globs choose, by name and shard.
Result<std::vector<TensorInfo>> ChooseTensors(const CheckpointReader& reader,
                                              const ExportFilesRequest& request) {
  VARVE_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, reader.List());
  std::erase_if(tensors, [&request](const TensorInfo& tensor) {
    const bool included = request.include.empty() || MatchesAny(request.include, tensor.name);
    return !included || MatchesAny(request.exclude, tensor.name);
  });
  if (tensors.empty() && !(request.include.empty() && request.exclude.empty())) {
    return Status::NotFound("the names to include and exclude choose no tensor of step " +
                            HumanId(reader.info().id));
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

Result<ExportPlan> PlanFormat(std::string_view format, ExportRequest request) {
  if (format == "safetensors") return PlanSafetensors(std::move(request));
  if (format == "infinitrain") return PlanInfiniTrain(std::move(request));
  if (format == "llmc") return PlanLlmc(std::move(request));
  if (format == "dcp") return PlanDcp(request);
  if (format == "npz") return PlanNpz(request);
  const std::vector<std::string> known(std::begin(kExportFormats), std::end(kExportFormats));
  return Status::InvalidArgument("no format \"" + std::string(format) + "\", expected one of " +
                                 Join(known, ", "));
}

Result<ExportPlan> Plan(const CheckpointReader& reader, const ExportFilesRequest& given) {
  ExportRequest request{.reader = reader, .tensors = {}, .out = given.out};
  if (given.max_shard_bytes) {
    if (given.format != "safetensors") {
      return Status::InvalidArgument(
          "--max-shard-size goes with the format safetensors only, not " + given.format);
    }
    request.max_shard_bytes = *given.max_shard_bytes;
  }
  VARVE_ASSIGN_OR_RETURN(request.tensors, ChooseTensors(reader, given));
  std::vector<std::string> notes;
  if (given.names) {
    if (given.format == "llmc") {
      return Status::InvalidArgument("--map does not go with --format llmc, which has no names");
    }
    VARVE_RETURN_IF_ERROR(NotePairsWithoutUse(reader, *given.names, &notes));
    VARVE_RETURN_IF_ERROR(Rename(*given.names, &request));
  }
  const auto stored_names = request.stored_names;
  VARVE_ASSIGN_OR_RETURN(ExportPlan plan, PlanFormat(given.format, std::move(request)));
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

Status RemoveLeftovers(ExportPlan* plan) {
  for (const std::filesystem::path& path : plan->leftovers) {
    std::error_code error;
    if (!std::filesystem::remove(path, error) && error) {
      return Status::IOError(path.string() + ": " + error.message() +
                             "; it is of an earlier export, and readers would take it for a part "
                             "of this one: remove it");
    }
    plan->notes.push_back("removed " + path.string() + ", which was of an earlier export");
  }
  return Status::Ok();
}

// All files are whole before the first gets its final name.
Status WriteAll(const CheckpointReader& reader, const ExportFilesRequest& request,
                const ExportPlan& plan) {
  ExportFolder folder;
  if (plan.folder) VARVE_RETURN_IF_ERROR(folder.Make(*plan.folder));
  for (const ExportFile& file : plan.files) {
    VARVE_RETURN_IF_ERROR(folder.Make(file.path.parent_path()));
  }
  uint64_t done = 0;
  const uint64_t total = plan.TotalBytes();
  const auto wrote = [&](uint64_t bytes) {
    done += bytes;
    if (request.progress) request.progress(std::min(done, total), total);
  };
  std::vector<OutputFile> outputs;
  for (const ExportFile& file : plan.files) {
    VARVE_ASSIGN_OR_RETURN(OutputFile output,
                           WriteFile(reader, plan, file, request.overwrite, wrote));
    outputs.push_back(std::move(output));
  }
  for (OutputFile& output : outputs) VARVE_RETURN_IF_ERROR(output.Commit());
  return Status::Ok();
}

}  // namespace

Result<ExportedFiles> ExportFiles(const CheckpointReader& reader,
                                  const ExportFilesRequest& request) {
  VARVE_ASSIGN_OR_RETURN(ExportPlan plan, Plan(reader, request));
  if (!request.overwrite && !plan.leftovers.empty()) {
    return Status::AlreadyExists(plan.leftovers.front().string() +
                                 " is of an earlier export, and readers would take it for a part "
                                 "of this one");
  }
  VARVE_RETURN_IF_ERROR(WriteAll(reader, request, plan));
  if (request.overwrite) VARVE_RETURN_IF_ERROR(RemoveLeftovers(&plan));
  ExportedFiles exported{.files = {},
                         .num_tensors = plan.NumTensors(),
                         .logical_bytes = plan.TotalBytes(),
                         .notes = std::move(plan.notes)};
  for (ExportFile& file : plan.files) exported.files.push_back(std::move(file.path));
  return exported;
}

}  // namespace varve::internal::cli
