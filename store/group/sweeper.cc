// SPDX-License-Identifier: Apache-2.0
#include "store/group/sweeper.h"

#include <utility>

#include "base/guarded.h"

namespace varve::internal {

Sweeper::~Sweeper() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void Sweeper::Ask() {
  const std::lock_guard lock(mutex_);
  is_asked_ = true;
  changed_.notify_all();
  if (thread_.joinable()) return;
  Guarded("starting a thread to sweep", [this] {
    thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
    return Status::Ok();
  }).IgnoreError();
}

void Sweeper::Await() {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) return;
  changed_.wait(lock, [this] { return !is_asked_ && !is_busy_; });
}

void Sweeper::Loop(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return is_asked_; })) {
    is_asked_ = false;
    is_busy_ = true;
    lock.unlock();
    bool is_left = false;
    Guarded("sweeping", [&]() -> Status {
      VARVE_ASSIGN_OR_RETURN(is_left, round_());
      return Status::Ok();
    }).IgnoreError();
    lock.lock();
    is_busy_ = false;
    if (stop.stop_requested()) return;
    if (is_left) is_asked_ = true;
    changed_.notify_all();
  }
}

}  // namespace varve::internal
