// SPDX-License-Identifier: Apache-2.0
//
// SIGTERM and SIGUSR1, which tell a job that its machine is about to go: noted when they come,
// acted on at the next step boundary. Thread rule: any thread.
#pragma once

#include <chrono>
#include <optional>

namespace varve {

// Handles both signals as long as one of them lives, then puts back what handled them before: ranks
// may be threads of a process, and what comes to it comes to all. A second signal is as good as the
// first.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // When the first came; nullopt: none has.
  std::optional<std::chrono::steady_clock::time_point> received() const;
};

}  // namespace varve
