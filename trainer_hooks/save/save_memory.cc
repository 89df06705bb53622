// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/save_memory.h"

#include <algorithm>

#include "trainer_hooks/save/tensor_places.h"
#include "trainer_hooks/state/state_bytes.h"

namespace varve::internal {

Status SaveMemory::Fit(const std::shared_ptr<const StateTensors>& tensors) {
  VARVE_RETURN_IF_ERROR(FitLayout(tensors));
  staging_.Clear();
  return Status::Ok();
}

Status SaveMemory::Prewarm(const std::shared_ptr<const StateTensors>& tensors) {
  VARVE_RETURN_IF_ERROR(FitLayout(tensors));
  staging_.Prewarm();
  return Status::Ok();
}

Status SaveMemory::Release() {
  VARVE_RETURN_IF_ERROR(Unpin());
  staging_.Release();
  return Status::Ok();
}

Status SaveMemory::FitLayout(const std::shared_ptr<const StateTensors>& tensors) {
  if (layout_ != nullptr && layout_->tensors() == tensors) return Status::Ok();
  VARVE_RETURN_IF_ERROR(SizeStaging(tensors->tensors));
  VARVE_ASSIGN_OR_RETURN(const auto layout, StageLayout::Make(tensors));
  layout_.reset();
  VARVE_RETURN_IF_ERROR(PrepareDevices(*layout));
  layout_ = layout;
  return Status::Ok();
}

// As large as the budget is for these tensors.
Status SaveMemory::SizeStaging(std::span<const StateTensor> tensors) {
  // A little more than the tensors: each chunk begins on a cache line.
  const uint64_t wanted = StateBytes(tensors) + (uint64_t{64} << 10) + 128 * tensors.size();
  if (wanted <= wanted_bytes_) return Status::Ok();
  uint64_t budget = std::min(budget_bytes_, wanted);
  if (budget == 0) budget = std::max(staging_.size(), std::min(wanted, HalfOfFreeMemory()));
  if (budget != staging_.size()) VARVE_RETURN_IF_ERROR(Unpin());
  VARVE_RETURN_IF_ERROR(staging_.Resize(budget));
  wanted_bytes_ = wanted;
  return Status::Ok();
}

Status SaveMemory::PrepareDevices(const StageLayout& layout) {
  VARVE_RETURN_IF_ERROR(CheckPlaces(TensorsOnDevices(layout.tensors()->tensors), devices_.get()));
  if (layout.num_on_devices() == 0) return Status::Ok();
  is_prepared_ = true;
  return devices_->Prepare(layout.device_chunks(), staging_.all());
}

// Before its pages go.
Status SaveMemory::Unpin() {
  layout_.reset();
  if (!std::exchange(is_prepared_, false)) return Status::Ok();
  return devices_->Prepare({}, {});
}

}  // namespace varve::internal
