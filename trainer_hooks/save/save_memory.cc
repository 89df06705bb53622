// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/save_memory.h"

#include <algorithm>

#include "trainer_hooks/save/stage.h"
#include "trainer_hooks/state/state_bytes.h"

namespace varve::internal {

Status SaveMemory::Fit(const std::shared_ptr<const SaveState>& state) {
  VARVE_RETURN_IF_ERROR(SizeStaging(state->state));
  VARVE_RETURN_IF_ERROR(PrepareDevices(state));
  staging_.Clear();
  return Status::Ok();
}

Status SaveMemory::Prewarm(const std::shared_ptr<const SaveState>& state) {
  VARVE_RETURN_IF_ERROR(SizeStaging(state->state));
  staging_.Prewarm();
  return PrepareDevices(state);
}

Status SaveMemory::Release() {
  VARVE_RETURN_IF_ERROR(Unpin());
  staging_.Release();
  return Status::Ok();
}

// As large as the budget is for this state.
Status SaveMemory::SizeStaging(const TrainingState& state) {
  // A little more than the state: each chunk begins on a cache line.
  const uint64_t wanted = StateBytes(state) + (uint64_t{64} << 10) + 128 * state.tensors.size();
  if (wanted <= wanted_bytes_) return Status::Ok();
  uint64_t budget = std::min(budget_bytes_, wanted);
  if (budget == 0) budget = std::max(staging_.size(), std::min(wanted, HalfOfFreeMemory()));
  if (budget != staging_.size()) VARVE_RETURN_IF_ERROR(Unpin());
  VARVE_RETURN_IF_ERROR(staging_.Resize(budget));
  wanted_bytes_ = wanted;
  return Status::Ok();
}

Status SaveMemory::PrepareDevices(const std::shared_ptr<const SaveState>& state) {
  const std::vector<const StateTensor*> tensors = TensorsOnDevices(state->state.tensors);
  if (places_.AreOf(tensors)) return Status::Ok();
  places_.Forget();
  VARVE_RETURN_IF_ERROR(CheckPlaces(tensors, devices_.get()));
  Stage stage(&staging_, nullptr);  // lists the chunks
  VARVE_RETURN_IF_ERROR(stage.Add(state));
  is_prepared_ = true;
  VARVE_RETURN_IF_ERROR(devices_->Prepare(stage.device_chunks(), staging_.all()));
  places_.Learn(tensors);
  return Status::Ok();
}

// Before its pages go.
Status SaveMemory::Unpin() {
  places_.Forget();
  if (!std::exchange(is_prepared_, false)) return Status::Ok();
  return devices_->Prepare({}, {});
}

}  // namespace varve::internal
