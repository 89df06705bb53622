// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace varve::internal::testing {

// Asks again and again, and returns false after four minutes: on a busy machine, what takes
// milliseconds may take that long.
inline bool ComesTrue(const std::function<bool()>& is_true) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace varve::internal::testing
