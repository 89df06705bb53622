// SPDX-License-Identifier: Apache-2.0
//
// A mutex that threads get in the order in which they ask for it. A thread that takes it again and
// again for little work lets each waiting thread have it first. std::mutex promises no such thing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace varve::internal {

class FairMutex {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    const uint64_t ticket = next_ticket_++;
    if (serving_ == ticket) return;
    const auto begin = std::chrono::steady_clock::now();
    turn_.wait(lock, [&] { return serving_ == ticket; });
    waited_by_this_thread() += std::chrono::steady_clock::now() - begin;
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      ++serving_;
    }
    turn_.notify_all();
  }

  // For benchmarks: how long the calling thread has waited for mutexes of this kind, in all.
  static std::chrono::nanoseconds& waited_by_this_thread() {
    static thread_local std::chrono::nanoseconds waited{0};
    return waited;
  }

  // For tests: the number of threads that wait for it.
  uint64_t num_waiting_for_test() {
    const std::lock_guard lock(mutex_);
    return next_ticket_ - serving_ - (next_ticket_ > serving_ ? 1 : 0);
  }

 private:
  std::mutex mutex_;
  std::condition_variable turn_;
  uint64_t next_ticket_ = 0;  // guarded by mutex_
  uint64_t serving_ = 0;      // guarded by mutex_: the ticket of the thread that has it
};

}  // namespace varve::internal
