// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/device_places.h"

#include <algorithm>
#include <cstddef>

namespace varve {
namespace {

bool IsSamePlace(const StateTensor& a, const StateTensor& b) {
  return a.data == b.data && a.device == b.device && a.dtype == b.dtype && a.shape == b.shape &&
         a.layout == b.layout;
}

}  // namespace

bool DevicePlaces::AreOf(std::span<const StateTensor> tensors) const {
  size_t i = 0;
  for (const StateTensor& tensor : tensors) {
    if (tensor.device == kHost) continue;
    if (i == places_.size() || !IsSamePlace(places_[i], tensor)) return false;
    ++i;
  }
  return i == places_.size();
}

void DevicePlaces::Learn(std::span<const StateTensor> tensors) {
  places_.clear();
  std::ranges::copy_if(tensors, std::back_inserter(places_),
                       [](const StateTensor& tensor) { return tensor.device != kHost; });
}

Status CheckPlaces(std::span<const StateTensor> tensors, DeviceTensorSource* devices) {
  for (const StateTensor& tensor : tensors) {
    if (tensor.device == kHost) continue;
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, NumBytes(tensor.dtype, tensor.shape));
    const Status there =
        devices->Check({tensor.device, {static_cast<const std::byte*>(tensor.data), bytes}});
    if (!there.ok()) return there.WithContext("tensor " + tensor.name);
  }
  return Status::Ok();
}

}  // namespace varve
