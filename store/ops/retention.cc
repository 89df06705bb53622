// SPDX-License-Identifier: Apache-2.0
#include "varve/retention.h"

#include <algorithm>
#include <cmath>

#include "base/guarded.h"

namespace varve {
using namespace internal;

namespace {

// True when the metric of `info` is a number. Then `*value` is that number.
bool GetMetric(const CheckpointInfo& info, std::string_view metric, double* value) {
  const auto it = info.metrics.find(std::string(metric));
  if (it == info.metrics.end() || std::isnan(it->second)) return false;
  *value = it->second;
  return true;
}

// Returns indices of the checkpoints that have the metric, best first. The
// newest of equal ones comes first.
std::vector<size_t> RankByMetric(std::span<const CheckpointInfo> checkpoints,
                                 std::string_view metric, bool highest) {
  struct Candidate {
    double value = 0;
    size_t index = 0;
  };
  std::vector<Candidate> candidates;
  for (size_t i = checkpoints.size(); i-- > 0;) {  // newest first, and the sort is stable
    double value = 0;
    if (GetMetric(checkpoints[i], metric, &value)) candidates.push_back({value, i});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [highest](const Candidate& a, const Candidate& b) {
                     return highest ? a.value > b.value : a.value < b.value;
                   });
  std::vector<size_t> ranked;
  for (const Candidate& candidate : candidates) ranked.push_back(candidate.index);
  return ranked;
}

std::string BestReason(const KeepBest& best) {
  std::string reason = "best " + best.metric;
  if (best.highest) reason += " (highest)";
  return reason;
}

// Returns "7d", "36h" or "90s", with the largest unit that divides the duration.
std::string DurationText(std::chrono::seconds duration) {
  const int64_t seconds = duration.count();
  for (const auto& [unit, name] : {std::pair<int64_t, char>{86400, 'd'}, {3600, 'h'}, {60, 'm'}}) {
    if (seconds % unit == 0) return std::to_string(seconds / unit) + name;
  }
  return std::to_string(seconds) + 's';
}

class Decider {
 public:
  explicit Decider(std::span<const CheckpointInfo> checkpoints) : checkpoints_(checkpoints) {
    for (const CheckpointInfo& info : checkpoints) decisions_.push_back({.id = info.id});
  }

  void KeepLast(uint64_t count) {
    const size_t n = decisions_.size();
    for (size_t i = n - std::min<uint64_t>(count, n); i < n; ++i) {
      Keep(i, "last " + std::to_string(count));
    }
  }
  void KeepEvery(uint64_t every) {
    for (size_t i = 0; every > 0 && i < decisions_.size(); ++i) {
      if (decisions_[i].id.step % every == 0) Keep(i, "every " + std::to_string(every));
    }
  }
  void KeepTheBest(const KeepBest& best) {
    const auto ranked = RankByMetric(checkpoints_, best.metric, best.highest);
    for (size_t i = 0; i < std::min<uint64_t>(best.count, ranked.size()); ++i) {
      Keep(ranked[i], BestReason(best));
    }
  }
  void KeepWithin(std::chrono::seconds within) {
    if (within.count() <= 0 || checkpoints_.empty()) return;
    auto newest = checkpoints_.front().created;
    for (const CheckpointInfo& info : checkpoints_) newest = std::max(newest, info.created);
    for (size_t i = 0; i < decisions_.size(); ++i) {
      // Compares the difference, because the newest time minus a long duration may not be
      // representable.
      if (newest - checkpoints_[i].created <= within) Keep(i, "within " + DurationText(within));
    }
    // Whatever its time says: the clock may have been set back.
    if (!decisions_.back().keep) Keep(decisions_.size() - 1, "newest");
  }
  void KeepTagged(std::string_view wanted) {
    for (size_t i = 0; i < decisions_.size(); ++i) {
      for (const std::string& tag : checkpoints_[i].tags) {
        if (wanted == "*" || tag == wanted) Keep(i, "tag " + tag);
      }
    }
  }

  std::vector<RetentionDecision> Take() { return std::move(decisions_); }

 private:
  void Keep(size_t i, std::string reason) {
    decisions_[i].keep = true;
    auto& reasons = decisions_[i].reasons;
    if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
      reasons.push_back(std::move(reason));
    }
  }

  const std::span<const CheckpointInfo> checkpoints_;
  std::vector<RetentionDecision> decisions_;
};

Result<std::vector<RetentionDecision>> Decide(const RetentionPolicy& policy,
                                              std::span<const CheckpointInfo> checkpoints) {
  if (policy.empty()) {
    return Status::InvalidArgument("the retention policy has no rule; it would drop every step");
  }
  Decider decider(checkpoints);
  decider.KeepLast(policy.keep_last);
  decider.KeepEvery(policy.keep_every);
  for (const KeepBest& best : policy.keep_best) decider.KeepTheBest(best);
  decider.KeepWithin(policy.keep_within);
  for (const std::string& tag : policy.keep_tags) decider.KeepTagged(tag);
  std::vector<RetentionDecision> decisions = decider.Take();
  const bool keeps_one = std::any_of(decisions.begin(), decisions.end(),
                                     [](const RetentionDecision& d) { return d.keep; });
  if (!keeps_one && !decisions.empty()) {
    return Status::InvalidArgument("the retention policy would keep none of the " +
                                   std::to_string(decisions.size()) + " steps of run " +
                                   decisions[0].id.run);
  }
  return decisions;
}

}  // namespace

bool RetentionPolicy::empty() const {
  const bool wants_best = std::any_of(keep_best.begin(), keep_best.end(),
                                      [](const KeepBest& b) { return b.count > 0; });
  return keep_last == 0 && keep_every == 0 && !wants_best && keep_within.count() <= 0 &&
         keep_tags.empty();
}

Result<std::vector<RetentionDecision>> DecideRetention(
    const RetentionPolicy& policy, std::span<const CheckpointInfo> checkpoints) {
  return Guarded("deciding what stays", [&] { return Decide(policy, checkpoints); });
}

std::vector<CheckpointId> DroppedBy(std::span<const RetentionDecision> decisions) {
  std::vector<CheckpointId> ids;
  for (const RetentionDecision& decision : decisions) {
    if (!decision.keep) ids.push_back(decision.id);
  }
  return ids;
}

std::optional<uint64_t> FindBest(std::span<const CheckpointInfo> checkpoints,
                                 std::string_view metric, bool highest) {
  const auto ranked = RankByMetric(checkpoints, metric, highest);
  if (ranked.empty()) return std::nullopt;
  return checkpoints[ranked.front()].id.step;
}

}  // namespace varve
