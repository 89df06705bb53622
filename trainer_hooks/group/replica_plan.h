// SPDX-License-Identifier: Apache-2.0
//
// Plans which rank saves what. Ranks that hold the same part of a tensor hold replicas of it. They
// are saved once: by one of the ranks, or cut into flat ranges, one for each rank. The plan is a
// pure function of what all ranks hold and have saved before, so all ranks plan alike. It stays the
// same from save to save, so what did not change is shared.
//
//   - A rank that saves a part of a master saves the same part of its weight. This costs nothing,
//     because the store derives the weight. It never looks into the store of another rank for that.
//   - A rank that saves a part of a weight saves the same part of its moments, so that a save can
//     replay a step of the optimizer (optimizer_step.h).
//   - Tied tensors are saved by the same rank, once.
//   - A part stays with the rank whose store already has it (HeldTensor::had). So a change of one
//     tensor moves no other. A part moves only if its rank would save more than 5/4 of what the
//     busiest rank saves in a plan from scratch.
//   - No rank ever saves more than 3/2 of that.
//   - All else goes, largest first, to the rank that has least to save.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trainer_hooks/group/held_tensor.h"

namespace varve::internal {

// The ranks that hold the same part of a tensor. Their digests must agree.
struct ReplicaGroup {
  struct Holder {
    uint32_t rank = 0;
    uint32_t tensor = 0;  // in the rank's list
  };
  std::vector<Holder> holders;  // at least two, by rank
};

struct ReplicaPlan {
  // For each rank, and for each tensor of its list, the elements of the local tensor that the rank
  // saves: all, one range, or none of them.
  std::vector<std::vector<std::optional<Range>>> writes;
  // Their order does not depend on the order of the lists. Tensors that are kept per rank are left
  // out.
  std::vector<ReplicaGroup> groups;
};

// kInvalidArgument lists the tensors about which ranks say different things, and these ranks. All
// ranks must give a name the same rule, role and master, whatever parts of the tensor they hold. A
// rank may leave out the master.
Status CompareRules(std::span<const std::vector<HeldTensor>> held);

// `held[r]` is the list of rank r, under the same rules on all ranks. All layouts must be valid.
// The order within a list makes no difference.
ReplicaPlan PlanReplicas(std::span<const std::vector<HeldTensor>> held);

// Returns the layout of the elements [range.begin, range.end) of the local tensor of `layout`.
ShardLayout CutLayout(ShardLayout layout, const Range& range);

}  // namespace varve::internal
