// SPDX-License-Identifier: Apache-2.0
//
// Retention: which checkpoints a policy keeps, and why. It is a pure decision. Store::Drop acts on
// it.
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

// Keeps the `count` best of a run's checkpoints that have this metric. NaN never wins. Of equal
// values the newest wins.
struct KeepBest {
  std::string metric;
  bool highest = false;  // false: the lowest value is best
  uint64_t count = 1;
};

// Which checkpoints of a run stay: the union of all rules that are set. A step that is nothing but
// the base of others' deltas is not kept. Its chunks are, by their reference counts.
struct RetentionPolicy {
  uint64_t keep_last = 0;   // that many with the highest step numbers
  uint64_t keep_every = 0;  // step numbers that are multiples of it
  std::vector<KeepBest> keep_best;
  std::chrono::seconds keep_within{0};  // saved at most this long before the newest checkpoint
  std::vector<std::string> keep_tags;   // steps with such a tag, where "*" is any tag

  bool empty() const;  // no rule is set
};

struct RetentionDecision {
  CheckpointId id;
  bool keep = false;
  std::vector<std::string> reasons;  // e.g. "last 3", "every 1000", "best loss", "tag release"
};

// One decision for each checkpoint, in their order. `checkpoints` are of one run, by rising step,
// as ListCheckpoints gives them. kInvalidArgument: the policy is empty, or would keep none of them.
Result<std::vector<RetentionDecision>> DecideRetention(const RetentionPolicy& policy,
                                                       std::span<const CheckpointInfo> checkpoints);
// The ids that are not kept.
std::vector<CheckpointId> DroppedBy(std::span<const RetentionDecision> decisions);

// The step with the best value of a metric, as KeepBest says. nullopt: no step has a number for it.
std::optional<uint64_t> FindBest(std::span<const CheckpointInfo> checkpoints,
                                 std::string_view metric, bool highest);

}  // namespace varve
