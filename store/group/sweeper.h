// SPDX-License-Identifier: Apache-2.0
//
// Work that a save leaves to a thread of its own: to take from the member what has been closed, so
// that no save waits for what a command forgot. It goes in rounds, each of which is short; between
// two of them a save comes in.
// Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "varve/result.h"

namespace varve {

class Sweeper {
 public:
  // `round`: does a bounded part of the work; whether some is left. After an error the work waits
  // to be asked for again.
  explicit Sweeper(std::function<Result<bool>()> round) : round_(std::move(round)) {}
  Sweeper(const Sweeper&) = delete;
  Sweeper& operator=(const Sweeper&) = delete;
  // Ends after the round that is under way, or after one of what was asked for last.
  ~Sweeper();

  // There may be work. Without room for a thread it waits for the next time.
  void Ask();
  // Until there is none left, or an error ends it.
  void Await();

 private:
  void Loop(const std::stop_token& stop);

  const std::function<Result<bool>()> round_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_asked_ = false;  // guarded by mutex_, as the next
  bool is_busy_ = false;
  std::jthread thread_;
};

}  // namespace varve
