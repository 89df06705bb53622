// SPDX-License-Identifier: Apache-2.0
//
// Who saves what. Ranks that hold the same part of a tensor hold replicas of it, which are saved
// once: whole by one of them, or cut into flat ranges, one a rank. The plan is a pure function of
// what all ranks hold and have saved before, so all ranks plan alike, and it stays the same from
// save to save: what did not change is shared.
//
//   - A rank that saves a part of a master saves the same part of its weight, which then costs
//     nothing: the store derives it, and never looks into the store of another rank for that.
//   - What is tied is saved by the same rank, once.
//   - A part stays with the rank whose store has it already (HeldTensor::had). A change of one
//     tensor then moves no other. It moves only if that rank would have over 5/4 of what the
//     busiest rank has in a plan from scratch.
//   - No rank ever has over 3/2 of that.
//   - All else goes, largest first, to the rank that has least to save.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trainer_hooks/group/held_tensor.h"

namespace varve::internal {

// Ranks that hold the same part of a tensor, and their digests must agree.
struct ReplicaGroup {
  struct Holder {
    uint32_t rank = 0;
    uint32_t tensor = 0;  // in the rank's list
  };
  std::vector<Holder> holders;  // at least two, by rank
};

struct ReplicaPlan {
  // For each rank, for each tensor of its list, the elements of the local tensor that it saves:
  // all, one range, or none of them.
  std::vector<std::vector<std::optional<Range>>> writes;
  // In an order that does not depend on those of the lists. Without tensors that are kept per rank.
  std::vector<ReplicaGroup> groups;
};

// kInvalidArgument lists the tensors of which ranks say different things, and which ranks: for one
// name there is one rule, one role and one master (which ranks may leave out), whatever parts of it
// they hold.
Status CompareRules(std::span<const std::vector<HeldTensor>> held);

// `held[r]` is the list of rank r, under the same rules on all ranks. Valid layouts only; the order
// within a list makes no difference.
ReplicaPlan PlanReplicas(std::span<const std::vector<HeldTensor>> held);

// Elements [range.begin, range.end) of the local tensor of `layout`.
ShardLayout CutLayout(const ShardLayout& layout, const Range& range);

}  // namespace varve::internal
