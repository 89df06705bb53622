// SPDX-License-Identifier: Apache-2.0
//
// A thread that does what a save leaves for later: it removes closed attempts from the member, so
// that no save waits for it. It works in short rounds, and a save may run between two of them.
// Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "varve/result.h"

namespace varve::internal {

class Sweeper {
 public:
  // `round` does a bounded part of the work and returns whether some is left. After an error no
  // round runs until the next Ask.
  explicit Sweeper(std::function<Result<bool>()> round) : round_(std::move(round)) {}
  Sweeper(const Sweeper&) = delete;
  Sweeper& operator=(const Sweeper&) = delete;
  // Ends after the round that is under way, or after one round for the last Ask.
  ~Sweeper();

  // Says that there may be work. If no thread can be made, the work waits for the next Ask.
  void Ask();
  // Waits until no work is left, or an error ends it.
  void Await();

 private:
  void Loop(const std::stop_token& stop);

  const std::function<Result<bool>()> round_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_asked_ = false;  // guarded by mutex_, as is the next
  bool is_busy_ = false;
  std::jthread thread_;
};

}  // namespace varve::internal
