// SPDX-License-Identifier: Apache-2.0
//
// Knows where the tensors of a state lie. What is prepared for them stays good until one of them
// moves. Thread rule: one thread.
#pragma once

#include <span>
#include <vector>

#include "varve/device_tensor_source.h"
#include "varve/training_state.h"

namespace varve::internal {

class TensorPlaces {
 public:
  // Returns true if all of `tensors` lie where those of the last Learn lay, and are cut into the
  // same chunks.
  bool AreOf(std::span<const StateTensor* const> tensors) const;
  void Learn(std::span<const StateTensor* const> tensors);
  void Forget() { places_.clear(); }
  // Tensors without names and layouts. They are valid until the next Learn or Forget.
  std::span<const StateTensor> places() const { return places_; }

 private:
  std::vector<StateTensor> places_;
};

std::vector<const StateTensor*> TensorsOnDevices(std::span<const StateTensor> tensors);

// kInvalidArgument names a tensor that is not in the memory of its device. `tensors` are on
// devices. `devices` may be null when there are none.
Status CheckPlaces(std::span<const StateTensor* const> tensors, DeviceTensorSource* devices);

}  // namespace varve::internal
