// SPDX-License-Identifier: Apache-2.0
//
// SIGTERM and SIGUSR1, which tell a job that its machine is about to go: noted when they come, acted on
// at the next step boundary.
#pragma once

#include <csignal>

#include <chrono>
#include <optional>

namespace varve {

// Handles both signals as long as it lives, then puts back what handled them before. One at a time in a
// process. A second signal is as good as the first.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // When the first came; nullopt: none has.
  std::optional<std::chrono::steady_clock::time_point> received() const;

 private:
  struct sigaction old_term_;
  struct sigaction old_usr1_;
};

}  // namespace varve
