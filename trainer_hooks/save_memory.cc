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
  wanted_bytes_ = wanted;
  uint64_t budget = budget_bytes_;
  if (budget == 0) budget = std::max(staging_.size(), std::min(wanted, HalfOfFreeMemory()));
  if (budget != staging_.size()) VARVE_RETURN_IF_ERROR(Unpin());
  return staging_.Resize(budget);
}

Status SaveMemory::PrepareDevices(const TrainingState& state) {
  std::vector<std::pair<const void*, uint64_t>> on_devices;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.device == kHost) continue;
    const auto bytes = WhereItLies(tensor).bytes;
    on_devices.emplace_back(bytes.data(), bytes.size());
  }
  if (on_devices == on_devices_) return Status::Ok();
  on_devices_.clear();
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.device == kHost) continue;
    const Status there = devices_->Check(WhereItLies(tensor));
    if (!there.ok()) return there.WithContext("tensor " + tensor.name);
  }
  Stage stage(&staging_, nullptr);  // lists the chunks
  VARVE_RETURN_IF_ERROR(stage.Add(state.tensors));
  VARVE_RETURN_IF_ERROR(devices_->Prepare(stage.device_chunks(), staging_.all()));
  on_devices_ = std::move(on_devices);
  return Status::Ok();
}

// Before its pages go.
Status SaveMemory::Unpin() {
  on_devices_.clear();
  return devices_ == nullptr ? Status::Ok() : devices_->Prepare({}, {});
}

}  // namespace varve
