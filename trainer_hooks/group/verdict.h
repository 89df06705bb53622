// SPDX-License-Identifier: Apache-2.0
//
// What the ranks have found out about a save on the trainer's threads, for the thread that commits
// it. Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "varve/result.h"

namespace varve {

class Verdict {
 public:
  // A save begins.
  void Expect() {
    const std::lock_guard lock(mutex_);
    status_.reset();
    warnings_.clear();
  }
  // The first one counts.
  void Give(const Status& status, std::vector<std::string> warnings = {}) {
    const std::lock_guard lock(mutex_);
    if (status_.has_value()) return;
    status_ = status;
    warnings_ = std::move(warnings);
    given_.notify_all();
  }
  Status Await() {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [&] { return status_.has_value(); });
    return *status_;
  }
  std::vector<std::string> warnings() const {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable given_;
  std::optional<Status> status_ = Status::Ok();
  std::vector<std::string> warnings_;
};

}  // namespace varve
