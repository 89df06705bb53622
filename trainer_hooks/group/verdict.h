// SPDX-License-Identifier: Apache-2.0
//
// Tells the thread that commits a save what the ranks have found out about it on the trainer's
// threads. Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "varve/async_checkpointer.h"
#include "varve/result.h"

namespace varve::internal {

// What a save has cost the trainer, and what it warns of, beyond what one rank alone knows.
struct GroupNotes {
  std::vector<std::string> warnings;
  double stall_seconds = 0;
  double busy_wait_seconds = 0;
};

class Verdict {
 public:
  // Call it when a save starts. Await then waits for its verdict.
  void Expect() {
    const std::lock_guard lock(mutex_);
    status_.reset();
    notes_ = {};
  }
  // Gives the verdict. Only the first one counts.
  void Give(const Status& status, GroupNotes notes = {}) {
    const std::lock_guard lock(mutex_);
    if (status_.has_value()) return;
    status_ = status;
    notes_ = std::move(notes);
    given_.notify_all();
  }
  Status Await() {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [&] { return status_.has_value(); });
    return *status_;
  }
  // Adds the notes to what this rank knows of its save.
  void AddNotesTo(SaveStats* stats) const {
    const std::lock_guard lock(mutex_);
    stats->warnings.insert(stats->warnings.end(), notes_.warnings.begin(), notes_.warnings.end());
    stats->stall_seconds += notes_.stall_seconds;
    stats->busy_wait_seconds += notes_.busy_wait_seconds;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable given_;
  std::optional<Status> status_ = Status::Ok();
  GroupNotes notes_;
};

}  // namespace varve::internal
