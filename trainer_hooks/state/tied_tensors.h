// SPDX-License-Identifier: Apache-2.0
//
// Finds the tensors of a state that are the same memory, as tied weights are. Thread rule: one
// thread.
#pragma once

#include <algorithm>
#include <unordered_map>

#include "varve/training_state.h"

namespace varve::internal {

class TiedTensors {
 public:
  void Reserve(size_t num_tensors) { by_data_.reserve(num_tensors); }

  // Returns the first of the tensors added so far that `tensor` is tied to: the same elements in
  // the same memory of the same device. Without one it is `tensor` itself, as it is for a tensor
  // without elements. `tensor` must stay where it is until the last call.
  const StateTensor* Add(const StateTensor& tensor) {
    if (std::ranges::count(tensor.shape, 0) > 0) return &tensor;  // no memory
    const auto [begin, end] = by_data_.equal_range(tensor.data);
    const auto first =
        std::find_if(begin, end, [&](const auto& entry) { return AreTied(*entry.second, tensor); });
    if (first != end) return first->second;
    by_data_.emplace(tensor.data, &tensor);
    return &tensor;
  }

 private:
  // Two devices may use the same address.
  static bool AreTied(const StateTensor& a, const StateTensor& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides &&
           a.layout == b.layout && a.device == b.device;
  }

  std::unordered_multimap<const void*, const StateTensor*> by_data_;
};

}  // namespace varve::internal
