// SPDX-License-Identifier: Apache-2.0
//
// What a save in progress relies on: the step it is compared with, which may not be dropped, and
// the births whose frames it shares or reads as bases, which may not be reclaimed. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "store/keys.h"

namespace varve {

class Pins {
 public:
  void PinStep(StepKey step) {
    const std::lock_guard lock(mutex_);
    ++steps_[step];
  }
  void UnpinStep(StepKey step) {
    const std::lock_guard lock(mutex_);
    if (--steps_[step] == 0) steps_.erase(step);
  }
  bool IsStepPinned(StepKey step) const {
    const std::lock_guard lock(mutex_);
    return steps_.contains(step);
  }

  // False when the birth is being reclaimed: what was found there must not be used.
  bool PinBirth(uint64_t birth) {
    const std::lock_guard lock(mutex_);
    if (reclaiming_.contains(birth)) return false;
    ++births_[birth];
    return true;
  }
  void UnpinBirth(uint64_t birth) {
    const std::lock_guard lock(mutex_);
    if (--births_[birth] == 0) births_.erase(birth);
  }

  // Claims all of `births` for reclaim, or none and false when one of them is pinned.
  bool BeginReclaim(const std::set<uint64_t>& births) {
    const std::lock_guard lock(mutex_);
    for (const uint64_t birth : births) {
      if (births_.contains(birth)) return false;
    }
    reclaiming_ = births;
    return true;
  }
  void EndReclaim() {
    const std::lock_guard lock(mutex_);
    reclaiming_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::map<StepKey, int> steps_;
  std::map<uint64_t, int> births_;
  std::set<uint64_t> reclaiming_;
};

}  // namespace varve
