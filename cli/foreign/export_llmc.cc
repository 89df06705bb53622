// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <span>
#include <utility>

#include "base/util.h"
#include "cli/foreign/export_plan.h"
#include "cli/foreign/llmc_items.h"
#include "cli/formats/llmc_model.h"
#include "cli/formats/llmc_state.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

// The chosen tensors that no file has yet.
class Chosen {
 public:
  explicit Chosen(std::vector<TensorInfo> tensors) {
    for (TensorInfo& tensor : tensors) {
      const uint32_t shard = tensor.shard == kAllShards ? 0 : tensor.shard;
      tensors_.emplace(Key{tensor.name, shard}, std::move(tensor));
    }
  }

  const TensorInfo* Find(std::string_view name, uint32_t shard = 0) const {
    const auto found = tensors_.find(Key{name, shard});
    return found == tensors_.end() ? nullptr : &found->second;
  }

  // kFailedPrecondition: the tensor was not chosen, or does not have `dtype` (and `shape`, if not
  // null).
  Result<TensorInfo> Take(std::string_view name, uint32_t shard, DType dtype,
                          const std::vector<int64_t>* shape) {
    const auto found = tensors_.find(Key{name, shard});
    const std::string quoted = "tensor \"" + std::string(name) + "\"";
    if (found == tensors_.end()) {
      return Status::FailedPrecondition(quoted +
                                        " of the llm.c file is not in the step, or was not "
                                        "chosen by --include and --exclude");
    }
    TensorInfo tensor = std::move(found->second);
    tensors_.erase(found);
    if (tensor.dtype == dtype && (shape == nullptr || tensor.shape == *shape)) return tensor;
    return Status::FailedPrecondition(quoted + " is " + std::string(DTypeName(tensor.dtype)) + " " +
                                      HumanShape(tensor.shape) + "; the llm.c file holds " +
                                      std::string(DTypeName(dtype)) +
                                      (shape == nullptr ? "" : " " + HumanShape(*shape)));
  }

  size_t num_left() const { return tensors_.size(); }

 private:
  using Key = std::pair<std::string, uint32_t>;
  std::map<Key, TensorInfo> tensors_;
};

// What an import has stored parses. If it does not, it has been damaged.
Status Damaged(std::string_view item, const Status& status) {
  return Status::Corruption("item \"" + std::string(item) + "\": " + status.message());
}

std::string FileName(const char* format, uint64_t step, uint32_t rank) {
  char name[64];
  std::snprintf(name, sizeof(name), format, step, rank);
  return name;
}

Result<ExportFile> ModelFile(const CheckpointReader& reader, Chosen* chosen) {
  VARVE_ASSIGN_OR_RETURN(std::optional<std::string> item, FindItem(reader, kLlmcModelItem));
  if (!item) {
    return Status::FailedPrecondition("step " + HumanId(reader.info().id) +
                                      " was not imported from llm.c: it has no header of such a "
                                      "file (item \"" +
                                      kLlmcModelItem + "\")");
  }
  const Result<formats::LlmcHeader> header = formats::ParseLlmcHeader(AsBytes(*item));
  if (!header.ok()) return Damaged(kLlmcModelItem, header.status());
  int64_t ffn = header->ffn_min;
  const TensorInfo* tensor = chosen->Find(formats::kLlmcFfnTensor);
  if (tensor != nullptr && !tensor->shape.empty() && header->Allows(tensor->shape[0])) {
    ffn = tensor->shape[0];
  }
  ExportFile file;
  file.parts.emplace_back(*std::move(item));
  for (const TensorSpec& wanted : formats::LlmcTensors(*header, ffn)) {
    VARVE_ASSIGN_OR_RETURN(TensorInfo taken,
                           chosen->Take(wanted.name, 0, wanted.dtype, &wanted.shape));
    file.parts.emplace_back(std::move(taken));
  }
  file.path = FileName("model_%08" PRIu64 ".bin", reader.info().id.step, 0);
  return file;
}

// Returns the header as it is at this step. Trainers that resume an import save its items again
// with every step. What the items say counts as long as the trainer state says the same.
Result<formats::LlmcStateHeader> HeaderOfStep(const formats::LlmcStateHeader& imported,
                                              const TrainerProgress& state) {
  formats::LlmcStateHeader header = imported;
  if (state.global_step < 0 || static_cast<uint64_t>(state.global_step) > formats::kMaxLlmcStep) {
    return Status::FailedPrecondition("global_step is " + std::to_string(state.global_step) +
                                      "; a state file of llm.c holds 0 to " +
                                      std::to_string(formats::kMaxLlmcStep));
  }
  header.step = static_cast<uint64_t>(state.global_step);
  const auto take = [&state](const char* key, uint64_t* value) {
    const auto found = state.extra.find(key);
    if (found == state.extra.end()) return;
    if (const auto* number = std::get_if<int64_t>(&found->second)) {
      *value = static_cast<uint64_t>(*number);
    }
  };
  take(kLlmcShardKey, &header.shard_index);
  take(kLlmcSampleKey, &header.sample_index);
  for (const RngState& rng : state.rng) {
    if (rng.rank != header.rank || rng.generator != kLlmcGenerator) continue;
    if (rng.state.size() == formats::kLlmcRngBytes)
      header.rng = std::as_bytes(std::span(rng.state));
  }
  return header;
}

// Brings the item of a process up to the step, and notes what its trainer has not changed since the
// import.
Status UpdateItem(const TrainerProgress& state, std::string* item, ExportPlan* plan) {
  VARVE_ASSIGN_OR_RETURN(const formats::LlmcStateHeader then,
                         formats::ParseLlmcStateHeader(AsBytes(*item)));
  VARVE_ASSIGN_OR_RETURN(formats::LlmcStateHeader now, HeaderOfStep(then, state));
  const bool is_same_place =
      now.shard_index == then.shard_index && now.sample_index == then.sample_index;
  const bool is_same_rng = std::ranges::equal(now.rng, then.rng);
  if (now.step == then.step && is_same_place && is_same_rng) return Status::Ok();
  const std::string prefix = "the state of process " + std::to_string(now.rank) + ": ";
  const std::string still = " still that of step " + std::to_string(then.step) +
                            ": the trainer has not changed it since the import";
  if (now.step != then.step && is_same_place) {
    plan->notes.push_back(prefix + "the position in the data is" + still);
  }
  if (now.step != then.step && is_same_rng) {
    plan->notes.push_back(prefix + "the generator is" + still);
  }
  if (then.has_shuffle) {
    now.has_shuffle = false;
    plan->notes.push_back(prefix +
                          "it is written without a shuffling loader, whose state is known " +
                          "for step " + std::to_string(then.step) + " only");
  }
  formats::WriteLlmcProgress(now, item);
  if (then.has_shuffle) item->resize(formats::kLlmcHeaderBytes);
  return Status::Ok();
}

// Returns the file of a process from its item, or nothing when its first vector was not chosen.
Result<std::optional<ExportFile>> StateFile(const std::string& item, uint64_t step,
                                            Chosen* chosen) {
  VARVE_ASSIGN_OR_RETURN(const formats::LlmcStateHeader header,
                         formats::ParseLlmcStateHeader(AsBytes(item)));
  if (chosen->Find(header.VectorNames()[0], header.rank) == nullptr) {
    return std::optional<ExportFile>();
  }
  ExportFile file;
  file.path = FileName("state_%08" PRIu64 "_%05" PRIu32 ".bin", step, header.rank);
  file.parts.emplace_back(item.substr(0, formats::kLlmcHeaderBytes));
  for (const std::string_view vector : header.VectorNames()) {
    VARVE_ASSIGN_OR_RETURN(TensorInfo taken,
                           chosen->Take(vector, header.rank, DType::kF32, nullptr));
    file.parts.emplace_back(std::move(taken));
  }
  file.parts.emplace_back(item.substr(formats::kLlmcHeaderBytes));
  return std::optional<ExportFile>(std::move(file));
}

Status AddStates(const CheckpointReader& reader, Chosen* chosen, ExportPlan* plan) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> items, reader.ListBytes());
  VARVE_ASSIGN_OR_RETURN(const std::optional<TrainerProgress> state, reader.ReadTrainerProgress());
  for (const std::string& name : items) {
    if (!name.starts_with(kLlmcStateItems)) continue;
    VARVE_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, reader.ReadBytes(name));
    std::string item(AsString(bytes));
    const Status updated = state ? UpdateItem(*state, &item, plan) : Status::Ok();
    if (updated.code() == StatusCode::kInvalidArgument) return Damaged(name, updated);
    VARVE_RETURN_IF_ERROR(updated);
    Result<std::optional<ExportFile>> file = StateFile(item, reader.info().id.step, chosen);
    if (file.status().code() == StatusCode::kInvalidArgument) return Damaged(name, file.status());
    if (!file.ok()) return file.status();
    if (file->has_value()) plan->files.push_back(**std::move(file));
  }
  return Status::Ok();
}

// Puts the files where the user wants them: into a folder, or a single file under a name of its
// own.
Status PlaceFiles(const std::filesystem::path& out, ExportPlan* plan) {
  if (!IsFolder(out)) {
    if (plan->files.size() > 1) {
      return Status::InvalidArgument(out.string() + " is no folder, and llmc writes " +
                                     std::to_string(plan->files.size()) +
                                     " files: end it in a slash to make one");
    }
    plan->files.front().path = out;
    return Status::Ok();
  }
  plan->folder = out;
  for (ExportFile& file : plan->files) file.path = out / file.path;
  return Status::Ok();
}

}  // namespace

Result<ExportPlan> PlanLlmc(ExportRequest request) {
  Chosen chosen(std::move(request.tensors));
  ExportPlan plan;
  VARVE_ASSIGN_OR_RETURN(ExportFile model, ModelFile(request.reader, &chosen));
  plan.files.push_back(std::move(model));
  VARVE_RETURN_IF_ERROR(AddStates(request.reader, &chosen, &plan));
  VARVE_RETURN_IF_ERROR(PlaceFiles(request.out, &plan));
  if (chosen.num_left() > 0) {
    plan.notes.push_back(Count(chosen.num_left(), "tensor") +
                         " not exported: the llm.c files have no place for such");
  }
  VARVE_RETURN_IF_ERROR(NoteItems(request.reader, "llmc", kLlmcItems, &plan));
  return plan;
}

}  // namespace varve::internal::cli
