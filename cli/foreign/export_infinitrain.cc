// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "cli/foreign/export_plan.h"
#include "cli/foreign/infinitrain_fields.h"
#include "cli/foreign/infinitrain_items.h"
#include "cli/formats/infinitrain_ckpt.h"
#include "cli/formats/infinitrain_state.h"
#include "store/format/trainer_progress.h"

namespace varve::internal::cli {
namespace {

using formats::CkptLayout;
using formats::kModelCkpt;
using formats::kOptimizerCkpt;

// The names of the state of InfiniTrain's optimizer start with this.
constexpr std::string_view kOptimizerPrefix = "adam.";

// The keys of `extra` that change from step to step.
constexpr const char* kFieldsOfAStep[] = {"infinitrain.consumed_batches", "infinitrain.last_lr"};

// The chosen tensors of each file, in its order.
using FileTensors = std::map<std::string, std::vector<TensorInfo>, std::less<>>;

Result<std::vector<CkptLayout>> ReadLayout(const CheckpointReader& reader) {
  VARVE_ASSIGN_OR_RETURN(const auto item, FindItem(reader, kInfiniTrainLayoutItem));
  if (!item) return std::vector<CkptLayout>();
  return ParseLayoutItem(*item);
}

// Files of the import keep their tensors and their order. Other tensors follow by name. A file from
// which the user chose nothing is left out, unless it was empty in the import.
FileTensors Distribute(const std::vector<CkptLayout>& layout, std::vector<TensorInfo> tensors) {
  std::map<std::string_view, TensorInfo*> left;
  for (TensorInfo& tensor : tensors) left.emplace(tensor.name, &tensor);
  FileTensors files;
  files[std::string(kModelCkpt)];  // always there
  for (const CkptLayout& file : layout) {
    if (file.tensors.empty()) files[file.file];
    for (const std::string& name : file.tensors) {
      const auto found = left.find(name);
      if (found == left.end()) continue;
      files[file.file].push_back(*found->second);
      left.erase(found);
    }
  }
  for (const auto& [name, tensor] : left) {
    files[std::string(name.starts_with(kOptimizerPrefix) ? kOptimizerCkpt : kModelCkpt)].push_back(
        *tensor);
  }
  return files;
}

Result<ExportFile> OneFile(std::filesystem::path path, std::vector<TensorInfo> tensors) {
  if (tensors.size() > UINT32_MAX)
    return Status::FailedPrecondition("a .ckpt file cannot hold 2^32 tensors");
  ExportFile file{.path = std::move(path), .parts = {}};
  file.parts.emplace_back(formats::BuildCkptHeader(static_cast<uint32_t>(tensors.size())));
  for (TensorInfo& tensor : tensors) {
    VARVE_ASSIGN_OR_RETURN(std::string entry, formats::BuildCkptEntry(tensor));
    file.parts.emplace_back(std::move(entry));
    file.parts.emplace_back(std::move(tensor));
  }
  return file;
}

Result<InfiniTrainFields> ParseStateItem(const std::string& text) {
  const auto root = formats::ParseInfiniTrainState(text);
  auto fields = root.ok() ? FieldsFromJson(*root) : root.status();
  if (fields.ok()) return fields;
  return Status::Corruption("item \"" + std::string(kInfiniTrainStateItem) +
                            "\": " + fields.status().message());
}

// Trainers that resume an import save its items again with every step. The text still describes
// `state` and `topology` when these hold exactly what an import takes from it.
bool SaysTheSame(const InfiniTrainFields& text, const TrainerProgress& state,
                 const std::optional<Topology>& topology) {
  TrainerProgress told = text.state;
  if (!text.step) told.global_step = state.global_step;  // it says none
  return topology == text.topology && EncodeTrainerProgress(told) == EncodeTrainerProgress(state);
}

// A trainer that does not know InfiniTrain's fields passes them on unchanged.
void NoteOldFields(const InfiniTrainFields& imported, const TrainerProgress& state,
                   ExportPlan* plan) {
  if (imported.state.global_step == state.global_step) return;
  for (const char* field : kFieldsOfAStep) {
    const auto then = imported.state.extra.find(field);
    const auto now = state.extra.find(field);
    if (then == imported.state.extra.end() || now == state.extra.end()) continue;
    if (then->second != now->second) continue;
    plan->notes.push_back("\"" + std::string(field) + "\" is still that of step " +
                          std::to_string(imported.state.global_step) +
                          ": the trainer has not changed it since the import");
  }
}

// Returns the text that was imported as this step, or else the text that follows from the trainer
// state, or nullopt without either.
Result<std::optional<std::string>> StateText(const CheckpointReader& reader, ExportPlan* plan) {
  VARVE_ASSIGN_OR_RETURN(std::optional<std::string> text, FindItem(reader, kInfiniTrainStateItem));
  VARVE_ASSIGN_OR_RETURN(const std::optional<TrainerProgress> state, reader.ReadTrainerProgress());
  VARVE_ASSIGN_OR_RETURN(const std::optional<Topology> topology, reader.ReadTopology());
  if (text && state) {
    VARVE_ASSIGN_OR_RETURN(const InfiniTrainFields imported, ParseStateItem(*text));
    if (SaysTheSame(imported, *state, topology)) return text;
    NoteOldFields(imported, *state, plan);
  }
  text.reset();
  if (state) text = JsonFromFields(*state, topology).dump(2) + "\n";
  return text;
}

// Refuses a file of another checkpoint in the folder, because it would be taken for a part of this
// one.
Status RefuseLeftovers(const ExportRequest& request, const ExportPlan& plan) {
  for (const std::string_view name : {kModelCkpt, kOptimizerCkpt, formats::kTrainerStateJson}) {
    const std::filesystem::path path = request.out / name;
    const bool is_written =
        std::any_of(plan.files.begin(), plan.files.end(),
                    [&path](const ExportFile& file) { return file.path == path; });
    std::error_code error;
    if (is_written || (!std::filesystem::exists(path, error) && !error)) continue;
    if (error) return Status::IOError("look at " + path.string() + ": " + error.message());
    return Status::FailedPrecondition(path.string() +
                                      " is there, and this export has no such file; "
                                      "remove it or choose another folder");
  }
  return Status::Ok();
}

}  // namespace

Result<ExportPlan> PlanInfiniTrain(ExportRequest request) {
  VARVE_RETURN_IF_ERROR(RefuseShards(request.tensors, "infinitrain"));
  VARVE_ASSIGN_OR_RETURN(const auto layout, ReadLayout(request.reader));
  ExportPlan plan;
  plan.folder = request.out;
  for (auto& [name, tensors] : Distribute(layout, std::move(request.tensors))) {
    VARVE_ASSIGN_OR_RETURN(ExportFile file, OneFile(request.out / name, std::move(tensors)));
    plan.files.push_back(std::move(file));
  }
  // This file comes last, so that a folder with it is whole.
  VARVE_ASSIGN_OR_RETURN(std::optional<std::string> state, StateText(request.reader, &plan));
  if (state) plan.Add(request.out / formats::kTrainerStateJson, *std::move(state));
  VARVE_RETURN_IF_ERROR(RefuseLeftovers(request, plan));
  VARVE_RETURN_IF_ERROR(NoteItems(request.reader, "infinitrain", kInfiniTrainItems, &plan));
  return plan;
}

}  // namespace varve::internal::cli
