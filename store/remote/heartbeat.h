// SPDX-License-Identifier: Apache-2.0
//
// Records that show a push to be alive: beat-ATTEMPT-NUMBER, the next one every few seconds. A
// collector watches whether they change. No clocks of two hosts are compared. Any thread.
//
// A push may seem silent for longer than the interval: a beat waits for a server that is slow, and
// a host may be busy. So a collector watches for several intervals before it calls a push dead.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "objects/objects.h"
#include "varve/result.h"

namespace varve::internal {

inline constexpr std::chrono::seconds kBeatInterval{5};
inline constexpr int kBeatsMissed = 6;  // by a push that counts as dead, at least

class Heartbeat {
 public:
  // Beats while this object lives. `objects` must outlive it.
  Heartbeat(Objects* objects, uint64_t attempt, std::chrono::milliseconds interval = kBeatInterval);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat();

 private:
  void Run(const std::stop_token& stop);

  Objects* const objects_;
  const uint64_t attempt_;
  const std::chrono::milliseconds interval_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

// Returns the newest beat of each attempt.
Result<std::map<uint64_t, std::string>> ReadBeats(const Objects& objects);
// Removes the beats of attempts that are not open any more. Best effort.
void RemoveBeats(Objects* objects, const std::function<bool(uint64_t attempt)>& is_open);

}  // namespace varve::internal
