// SPDX-License-Identifier: Apache-2.0
#include "gpt/checkpoint.h"

#include <span>
#include <string>
#include <vector>

namespace gpt {
namespace {

varve::Status CheckMatches(const StateTensor& want, const varve::TensorInfo& found) {
  if (found.dtype == want.dtype && found.shape == want.shape) return varve::Status::Ok();
  return varve::Status::InvalidArgument("tensor '" + want.name +
                                        "' of the checkpoint has another shape or type than the "
                                        "model; do the size flags agree?");
}

}  // namespace

varve::Result<varve::SaveReport> SaveCheckpoint(varve::Store* store, Trainer* trainer) {
  const uint64_t step = static_cast<uint64_t>(trainer->step());
  VARVE_ASSIGN_OR_RETURN(
      const auto writer,
      store->Begin(step, {.run = kRun, .on_existing = varve::OnExisting::kReplace}));
  for (const StateTensor& tensor : trainer->Tensors()) {
    VARVE_RETURN_IF_ERROR(writer->Put({.name = tensor.name,
                                       .dtype = tensor.dtype,
                                       .shape = tensor.shape,
                                       .data = tensor.data,
                                       .derived_from = tensor.derived_from}));
  }
  VARVE_RETURN_IF_ERROR(writer->SetTrainerState(trainer->State()));
  VARVE_RETURN_IF_ERROR(writer->SetMetric("loss", trainer->last_loss()));
  return writer->Commit();
}

varve::Status LoadCheckpoint(const varve::Store& store, uint64_t step, Trainer* trainer) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(kRun, step));
  const std::vector<StateTensor> tensors = trainer->Tensors();
  std::vector<varve::ReadRequest> requests;
  for (const StateTensor& tensor : tensors) {
    VARVE_ASSIGN_OR_RETURN(const varve::TensorInfo found, reader->Find(tensor.name));
    VARVE_RETURN_IF_ERROR(CheckMatches(tensor, found));
    if (tensor.tied) continue;  // its storage is filled through the tensor it is tied to
    requests.push_back(
        {.name = tensor.name, .out = {static_cast<std::byte*>(tensor.data), found.logical_bytes}});
  }
  VARVE_RETURN_IF_ERROR(reader->ReadMany(requests));
  VARVE_ASSIGN_OR_RETURN(const auto state, reader->ReadTrainerState());
  if (!state.has_value()) {
    return varve::Status::InvalidArgument("the checkpoint has no trainer state");
  }
  return trainer->Restore(*state);
}

varve::Status KeepLast(varve::Store* store, size_t num) {
  VARVE_ASSIGN_OR_RETURN(const auto checkpoints, store->ListCheckpoints(kRun));
  std::vector<varve::CheckpointId> old;
  for (size_t i = 0; i + num < checkpoints.size(); ++i) old.push_back(checkpoints[i].id);
  if (old.empty()) return varve::Status::Ok();
  return store->Drop(old).status();
}

}  // namespace gpt
