// SPDX-License-Identifier: Apache-2.0
//
// Retention decides which checkpoints a policy keeps, and says why. It changes nothing. Pass the
// result to Store::Drop.
//
//   varve::RetentionPolicy policy{.keep_last = 3, .keep_every = 1000};
//   VARVE_ASSIGN_OR_RETURN(const auto steps, store->ListCheckpoints("main"));
//   VARVE_ASSIGN_OR_RETURN(const auto decisions, varve::DecideRetention(policy, steps));
//   VARVE_RETURN_IF_ERROR(store->Drop(varve::DroppedBy(decisions)).status());
//
// All types are plain values. All functions are stateless, and any thread may call them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/result.h"

namespace varve {

// Keeps the `count` checkpoints of a run with the best values of `metric`. A checkpoint without the
// metric, or with NaN, is never among them. Among equal values the newest wins.
struct KeepBest {
  std::string metric;
  bool highest = false;  // false: the lowest value is best
  uint64_t count = 1;
};

// Says which checkpoints of a run stay. A checkpoint stays if at least one rule keeps it. A rule
// that is 0 or empty keeps none. A step may be dropped even if later steps have deltas against it.
// The chunks that these deltas need stay in the store until no step needs them.
struct RetentionPolicy {
  uint64_t keep_last = 0;   // keeps this many steps with the highest numbers
  uint64_t keep_every = 0;  // keeps steps whose number is a multiple of this one
  std::vector<KeepBest> keep_best;
  // Keeps steps that were saved at most this long before the most recent save, by
  // CheckpointInfo::created. Also keeps the step with the highest number. 0 = the rule is not set.
  std::chrono::seconds keep_within{0};
  std::vector<std::string> keep_tags;  // keeps steps that have one of these tags. "*" = any tag

  bool empty() const;  // no rule is set
};

struct RetentionDecision {
  CheckpointId id;
  bool keep = false;
  std::vector<std::string> reasons;  // e.g. "last 3", "every 1000", "best loss", "tag release"
};

// Returns one decision for each checkpoint, in their order. `checkpoints` are those of one run, in
// ascending order of step, as Store::ListCheckpoints returns them. kInvalidArgument: the policy is
// empty, or would keep none of them.
Result<std::vector<RetentionDecision>> DecideRetention(const RetentionPolicy& policy,
                                                       std::span<const CheckpointInfo> checkpoints);
// Returns the ids of the checkpoints that are not kept.
std::vector<CheckpointId> DroppedBy(std::span<const RetentionDecision> decisions);

// Returns the step with the best value of a metric, as KeepBest orders them. nullopt: no step has
// the metric, or all values are NaN.
std::optional<uint64_t> FindBest(std::span<const CheckpointInfo> checkpoints,
                                 std::string_view metric, bool highest);

}  // namespace varve
