// SPDX-License-Identifier: Apache-2.0
//
// What a save in progress relies on. It is compared with a step, which may not be dropped
// meanwhile. It shares frames of other saves or reads them as bases, and these saves may not be
// reclaimed. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "store/format/keys.h"

namespace varve::internal {

class Pins {
 public:
  // Returns false while the step is being dropped.
  bool PinStep(StepKey step) {
    const std::lock_guard lock(mutex_);
    if (dropping_.contains(step)) return false;
    ++steps_[step];
    return true;
  }
  void UnpinStep(StepKey step) {
    const std::lock_guard lock(mutex_);
    if (--steps_[step] == 0) steps_.erase(step);
  }
  int NumStepPins(StepKey step) const {
    const std::lock_guard lock(mutex_);
    const auto it = steps_.find(step);
    return it == steps_.end() ? 0 : it->second;
  }

  // Claims steps for a drop, or returns those that are pinned and claims none.
  std::vector<StepKey> BeginDrop(const std::vector<StepKey>& steps) {
    const std::lock_guard lock(mutex_);
    std::vector<StepKey> pinned;
    for (const StepKey& step : steps) {
      if (steps_.contains(step)) pinned.push_back(step);
    }
    if (!pinned.empty()) return pinned;
    std::set<StepKey> claimed(steps.begin(), steps.end());
    dropping_.merge(claimed);  // all of them, or none if there was no memory for all
    return {};
  }
  bool IsDropping(StepKey step) const {
    const std::lock_guard lock(mutex_);
    return dropping_.contains(step);
  }
  void EndDrop(const std::vector<StepKey>& steps) {
    const std::lock_guard lock(mutex_);
    for (const StepKey& step : steps) dropping_.erase(step);
  }

  // Saves that open writers make. No file that reaches the lowest of them may be merged, because
  // the writer's own file would overlap the result.
  void BeginSave(uint64_t save_id) {
    const std::lock_guard lock(mutex_);
    open_save_ids_.insert(save_id);
  }
  void EndSave(uint64_t save_id) {
    const std::lock_guard lock(mutex_);
    open_save_ids_.erase(save_id);
  }
  uint64_t LowestOpenSave() const {
    const std::lock_guard lock(mutex_);
    return open_save_ids_.empty() ? UINT64_MAX : *open_save_ids_.begin();
  }

  // Returns false when the save is being reclaimed. What was found there must not be used.
  bool PinSave(uint64_t save_id) {
    const std::lock_guard lock(mutex_);
    if (reclaiming_.contains(save_id)) return false;
    ++saves_[save_id];
    return true;
  }
  void UnpinSave(uint64_t save_id) {
    const std::lock_guard lock(mutex_);
    if (--saves_[save_id] == 0) saves_.erase(save_id);
  }

  // Claims all of `saves` for a reclaim. If one of them is pinned, it claims none and returns
  // false.
  bool BeginReclaim(const std::set<uint64_t>& saves) {
    const std::lock_guard lock(mutex_);
    for (const uint64_t save_id : saves) {
      if (saves_.contains(save_id)) return false;
    }
    reclaiming_ = saves;
    return true;
  }
  void EndReclaim() {
    const std::lock_guard lock(mutex_);
    reclaiming_.clear();
  }

  // For tests: nothing is pinned or claimed, and no save is open.
  bool IsIdleForTest() const {
    const std::lock_guard lock(mutex_);
    return steps_.empty() && dropping_.empty() && open_save_ids_.empty() && saves_.empty() &&
           reclaiming_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::map<StepKey, int> steps_;
  std::set<StepKey> dropping_;
  std::set<uint64_t> open_save_ids_;
  std::map<uint64_t, int> saves_;
  std::set<uint64_t> reclaiming_;
};

// Steps that are claimed for a drop until this goes. One thread.
class ClaimedSteps {
 public:
  explicit ClaimedSteps(Pins* pins) : pins_(pins) {}
  ClaimedSteps(const ClaimedSteps&) = delete;
  ClaimedSteps& operator=(const ClaimedSteps&) = delete;
  ~ClaimedSteps() { pins_->EndDrop(claimed_); }

  // Claims these, too, or returns those that are pinned and claims none of them.
  std::vector<StepKey> Claim(const std::vector<StepKey>& steps) {
    claimed_.reserve(claimed_.size() + steps.size());  // the last that may throw is BeginDrop
    std::vector<StepKey> pinned = pins_->BeginDrop(steps);
    if (pinned.empty()) claimed_.insert(claimed_.end(), steps.begin(), steps.end());
    return pinned;
  }

 private:
  Pins* const pins_;
  std::vector<StepKey> claimed_;
};

}  // namespace varve::internal
