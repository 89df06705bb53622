// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save_memory.h"

#include <algorithm>
#include <cstddef>

#include "trainer_hooks/stage.h"
#include "trainer_hooks/state_bytes.h"

namespace varve {
namespace {

DeviceTensorSource::Chunk WhereItLies(const StateTensor& tensor) {
  const uint64_t bytes = NumBytes(tensor.dtype, tensor.shape).value();
  return {tensor.device, {static_cast<const std::byte*>(tensor.data), bytes}};
}

// And is cut into the same chunks.
bool IsSamePlace(const StateTensor& a, const StateTensor& b) {
  return a.data == b.data && a.device == b.device && a.dtype == b.dtype && a.shape == b.shape &&
         a.layout == b.layout;
}

}  // namespace

Status SaveMemory::Fit(const TrainingState& state) {
  VARVE_RETURN_IF_ERROR(SizeStaging(state));
  VARVE_RETURN_IF_ERROR(PrepareDevices(state));
  staging_.Clear();
  return Status::Ok();
}

Status SaveMemory::Prewarm(const TrainingState& state) {
  VARVE_RETURN_IF_ERROR(SizeStaging(state));
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

bool SaveMemory::IsPreparedFor(const TrainingState& state) const {
  size_t i = 0;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.device == kHost) continue;
    if (i == on_devices_.size() || !IsSamePlace(on_devices_[i], tensor)) return false;
    ++i;
  }
  return i == on_devices_.size();
}

Status SaveMemory::PrepareDevices(const TrainingState& state) {
  if (IsPreparedFor(state)) return Status::Ok();
  on_devices_.clear();
  std::vector<StateTensor> on_devices;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.device == kHost) continue;
    const Status there = devices_->Check(WhereItLies(tensor));
    if (!there.ok()) return there.WithContext("tensor " + tensor.name);
    on_devices.push_back(tensor);
  }
  Stage stage(&staging_, nullptr);  // lists the chunks
  VARVE_RETURN_IF_ERROR(stage.Add(state.tensors));
  is_prepared_ = true;
  VARVE_RETURN_IF_ERROR(devices_->Prepare(stage.device_chunks(), staging_.all()));
  on_devices_ = std::move(on_devices);
  return Status::Ok();
}

// Before its pages go.
Status SaveMemory::Unpin() {
  on_devices_.clear();
  if (!std::exchange(is_prepared_, false)) return Status::Ok();
  return devices_->Prepare({}, {});
}

}  // namespace varve
