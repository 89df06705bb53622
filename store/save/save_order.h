// SPDX-License-Identifier: Apache-2.0
//
// Decides which tensors of a save are rounded copies of which others, and in which order a save
// reads its tensors. No other place decides it. The functions are stateless.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
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

// Gives each tensor that names a master (`derived_from()`) this master, if it may be its rounded
// copy. `find(name, shard)` returns the tensor of that name and number, or null. Returns whether
// any tensor has a master.
template <typename Tensors, typename Find>
bool LinkMasters(Tensors* tensors, const Find& find) {
  bool are_any = false;
  for (auto& tensor : *tensors) {
    if (tensor.derived_from().empty()) continue;
    auto* const master = find(tensor.derived_from(), tensor.shard);
    if (master == nullptr || !MayBeRoundedCopy(tensor.Traits(), master->Traits())) continue;
    tensor.SetMaster(master);
    are_any = true;
  }
  return are_any;
}

// Returns all tensors in their order, with two exceptions. Those of `together()` are directly
// behind each other, where the first of them was. The copies of a tensor are directly behind it, or
// behind all that it is together with. So a master is placed first, and its bytes are not needed
// after its copies. `Tensor::master()` is null for a tensor that is no copy. `Tensor::together()`
// is the same span for all that are together, and empty for others. A master, or one that is
// together with others, is no copy.
template <typename Tensor, typename Tensors>
std::vector<Tensor*> SaveOrder(Tensors* tensors) {
  using Pair = std::pair<const Tensor*, Tensor*>;  // of a master and its copy
  const auto master_of = [](const Pair& pair) { return pair.first; };
  std::vector<Pair> copies;
  for (Tensor& tensor : *tensors) {
    if (tensor.master() != nullptr) copies.emplace_back(tensor.master(), &tensor);
  }
  std::ranges::stable_sort(copies, std::less<>(), master_of);
  std::vector<Tensor*> order;
  order.reserve(tensors->size());
  std::set<Tensor* const*> placed;  // that are together
  for (Tensor& tensor : *tensors) {
    if (tensor.master() != nullptr) continue;
    Tensor* const alone = &tensor;
    std::span<Tensor* const> next = tensor.together();
    if (next.empty()) {
      next = {&alone, 1};
    } else if (!placed.insert(next.data()).second) {
      continue;
    }
    order.insert(order.end(), next.begin(), next.end());
    for (const Tensor* const master : next) {
      auto copy = std::ranges::lower_bound(copies, master, std::less<>(), master_of);
      for (; copy != copies.end() && copy->first == master; ++copy) order.push_back(copy->second);
    }
  }
  return order;
}

}  // namespace varve::internal
