// SPDX-License-Identifier: Apache-2.0
//
// Decides which tensors of a save are rounded copies of which others, and in which order a save
// reads them. No other place decides it, but replayed_step.h for a save that knows the step of an
// optimizer. The functions are stateless.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "varve/tensor.h"

namespace varve::internal {

// The facts about a tensor that decide whether it can be a copy or a master.
struct CopyTraits {
  DType dtype = DType::kF32;
  bool is_dense = true;
  uint64_t num_chunks = 0;
};

// Chunks are compared one by one, so shapes make no difference, nor padding behind the master.
inline bool MayBeRoundedCopy(const CopyTraits& copy, const CopyTraits& master) {
  const bool is_narrow = copy.dtype == DType::kBF16 || copy.dtype == DType::kF16;
  return is_narrow && master.dtype == DType::kF32 && copy.is_dense && master.is_dense &&
         copy.num_chunks == master.num_chunks;
}

// Returns all tensors in their order, but each copy directly after its master. A master is placed
// first, and its bytes are not needed after its copies. `Tensor::master()` is null for a tensor
// that is no copy. A master is no copy.
template <typename Tensor, typename Tensors>
std::vector<Tensor*> MastersBeforeCopies(Tensors* tensors) {
  using Pair = std::pair<const Tensor*, Tensor*>;  // of a master and its copy
  const auto master_of = [](const Pair& pair) { return pair.first; };
  std::vector<Pair> copies;
  for (Tensor& tensor : *tensors) {
    if (tensor.master() != nullptr) copies.emplace_back(tensor.master(), &tensor);
  }
  std::ranges::stable_sort(copies, std::less<>(), master_of);
  std::vector<Tensor*> order;
  order.reserve(tensors->size());
  for (Tensor& tensor : *tensors) {
    if (tensor.master() != nullptr) continue;
    order.push_back(&tensor);
    const Tensor* const master = &tensor;
    auto copy = std::ranges::lower_bound(copies, master, std::less<>(), master_of);
    for (; copy != copies.end() && copy->first == master; ++copy) order.push_back(copy->second);
  }
  return order;
}

}  // namespace varve::internal
