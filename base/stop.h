// SPDX-License-Identifier: Apache-2.0
//
// How an operation learns that its caller wants it to end (varve/stop.h).
#pragma once

#include <atomic>

#include "varve/status.h"

namespace varve::internal {

// The flag of the StopScope that the thread has which makes this object. Without a scope it is
// never set. Any thread may ask.
class StopFlag {
 public:
  StopFlag();
  // Null without a scope. A worker thread makes a StopScope of it.
  const std::atomic<bool>* flag() const { return flag_; }
  bool is_set() const { return flag_ != nullptr && flag_->load(std::memory_order_relaxed); }
  // Returns kAborted when the flag is set.
  Status Check() const {
    return is_set() ? Status::Aborted("stopped, as the caller asked") : Status::Ok();
  }

 private:
  const std::atomic<bool>* const flag_;
};

}  // namespace varve::internal
