// SPDX-License-Identifier: Apache-2.0
//
// SIGTERM and SIGUSR1, which tell a job that its machine is about to go away. They are noted when
// they come, and acted on at the next step boundary. Thread rule: any thread.
#pragma once

#include <chrono>
#include <optional>

namespace varve::internal {

// Handles both signals while at least one StopSignal lives, then restores the handlers of before.
// Ranks may be threads of one process, and a signal to the process reaches all of them. A second
// signal has no further effect.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Returns when the first signal came, or nullopt when none has come.
  std::optional<std::chrono::steady_clock::time_point> received() const;
};

}  // namespace varve::internal
