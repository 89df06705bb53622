// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/save_state.h"

#include <algorithm>
#include <utility>

#include "store/shards/strides.h"
#include "trainer_hooks/state/state_shards.h"
#include "trainer_hooks/state/tied_tensors.h"

namespace varve::internal {

namespace {

std::vector<uint32_t> FindFirsts(const std::vector<StateTensor>& tensors) {
  std::vector<uint32_t> firsts;
  firsts.reserve(tensors.size());
  TiedTensors tied;
  tied.Reserve(tensors.size());
  for (const StateTensor& tensor : tensors) {
    firsts.push_back(static_cast<uint32_t>(tied.Add(tensor) - tensors.data()));
  }
  return firsts;
}

// `kept` is what MakeStateTensors has made of a tensor. Its alias_of does not come from the state.
bool IsOf(const StateTensor& kept, const StateTensor& given) {
  const bool is_same_memory = kept.data == given.data && kept.device == given.device &&
                              kept.dtype == given.dtype && kept.shape == given.shape &&
                              (kept.strides == given.strides ||
                               (kept.strides.empty() && IsDense(given.shape, given.strides)));
  return is_same_memory && kept.name == given.name && kept.role == given.role &&
         kept.derived_from == given.derived_from &&
         (kept.layout == given.layout || (kept.layout.has_value() && given.layout.has_value() &&
                                          *kept.layout == Canonical(*given.layout)));
}

}  // namespace

bool StateTensors::AreOf(std::span<const StateTensor> given) const {
  return std::ranges::equal(tensors, given, IsOf);
}

std::shared_ptr<const StateTensors> MakeStateTensors(std::vector<StateTensor> tensors) {
  for (StateTensor& tensor : tensors) {
    if (IsDense(tensor.shape, tensor.strides)) tensor.strides.clear();
    if (tensor.layout.has_value()) tensor.layout = Canonical(*std::move(tensor.layout));
  }
  std::vector<uint32_t> shards = NumberShards(tensors);
  std::vector<uint32_t> firsts = FindFirsts(tensors);
  for (size_t i = 0; i < firsts.size(); ++i) {
    tensors[i].alias_of = firsts[i] == i ? "" : tensors[firsts[i]].name;
  }
  return std::make_shared<const StateTensors>(
      StateTensors{std::move(tensors), std::move(shards), std::move(firsts)});
}

TrainingState WithoutTensors(const TrainingState& state) {
  return {.tensors = {},
          .items = state.items,
          .trainer = state.trainer,
          .topology = state.topology,
          .metrics = state.metrics,
          .tags = state.tags,
          .optimizer_step = state.optimizer_step};
}

std::shared_ptr<SaveState> MakeSaveState(const TrainingState& state,
                                         std::shared_ptr<const StateTensors> tensors) {
  return std::make_shared<SaveState>(SaveState{std::move(tensors), WithoutTensors(state)});
}

std::shared_ptr<SaveState> MakeSaveState(TrainingState&& state,
                                         std::shared_ptr<const StateTensors> known) {
  const bool is_known = known != nullptr && known->AreOf(state.tensors);
  if (!is_known) known = MakeStateTensors(std::move(state.tensors));
  state.tensors = std::vector<StateTensor>();  // their memory goes, too
  return std::make_shared<SaveState>(SaveState{std::move(known), std::move(state)});
}

}  // namespace varve::internal
