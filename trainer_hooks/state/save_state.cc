// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/save_state.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "store/shards/strides.h"
#include "trainer_hooks/state/state_shards.h"

namespace varve::internal {

namespace {

bool AreTied(const StateTensor& a, const StateTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides &&
         a.layout == b.layout && a.device == b.device;
}

std::vector<uint32_t> FindFirsts(const std::vector<StateTensor>& tensors) {
  std::vector<uint32_t> firsts(tensors.size());
  std::unordered_multimap<const void*, uint32_t> by_data;
  by_data.reserve(tensors.size());
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    firsts[i] = i;
    if (std::ranges::count(tensors[i].shape, 0) > 0) continue;  // no memory
    const auto [begin, end] = by_data.equal_range(tensors[i].data);
    const auto tied = std::find_if(
        begin, end, [&](const auto& entry) { return AreTied(tensors[entry.second], tensors[i]); });
    if (tied == end) {
      by_data.emplace(tensors[i].data, i);
    } else {
      firsts[i] = tied->second;
    }
  }
  return firsts;
}

}  // namespace

std::shared_ptr<const SaveState> MakeSaveState(TrainingState state) {
  for (StateTensor& tensor : state.tensors) {
    if (IsDense(tensor.shape, tensor.strides)) tensor.strides.clear();
    if (tensor.layout.has_value()) tensor.layout = Canonical(*std::move(tensor.layout));
  }
  std::vector<uint32_t> shards = NumberShards(state.tensors);
  std::vector<uint32_t> firsts = FindFirsts(state.tensors);
  for (size_t i = 0; i < firsts.size(); ++i) {
    state.tensors[i].alias_of = firsts[i] == i ? "" : state.tensors[firsts[i]].name;
  }
  return std::make_shared<const SaveState>(
      SaveState{std::move(state), std::move(shards), std::move(firsts)});
}

}  // namespace varve::internal
