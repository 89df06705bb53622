// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/tensor_places.h"

#include <algorithm>
#include <cstddef>

namespace varve::internal {

namespace {

bool IsSamePlace(const StateTensor& a, const StateTensor& b) {
  return a.data == b.data && a.device == b.device && a.dtype == b.dtype && a.shape == b.shape &&
         a.strides == b.strides;
}

}  // namespace

bool TensorPlaces::AreOf(std::span<const StateTensor* const> tensors) const {
  return std::ranges::equal(places_, tensors, [](const StateTensor& a, const StateTensor* b) {
    return IsSamePlace(a, *b);
  });
}

void TensorPlaces::Learn(std::span<const StateTensor* const> tensors) {
  places_.clear();
  for (const StateTensor* const tensor : tensors) {
    places_.push_back({{.dtype = tensor->dtype, .shape = tensor->shape},
                       tensor->data,
                       tensor->device,
                       tensor->strides});
  }
}

std::vector<const StateTensor*> TensorsOnDevices(std::span<const StateTensor> tensors) {
  std::vector<const StateTensor*> on_devices;
  for (const StateTensor& tensor : tensors) {
    if (tensor.device != kHost) on_devices.push_back(&tensor);
  }
  return on_devices;
}

Status CheckPlaces(std::span<const StateTensor* const> tensors, DeviceTensorSource* devices) {
  for (const StateTensor* const tensor : tensors) {
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, NumBytes(tensor->dtype, tensor->shape));
    const Status there =
        devices->Check({tensor->device, {static_cast<const std::byte*>(tensor->data), bytes}});
    if (!there.ok()) return there.WithContext("tensor " + tensor->name);
  }
  return Status::Ok();
}

}  // namespace varve::internal
