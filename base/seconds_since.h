// SPDX-License-Identifier: Apache-2.0
//
// How long ago something was, and what time it is. Functions of the clock alone.
#pragma once

#include <chrono>
#include <cstdint>

namespace varve::internal {

// Negative for a time that is still to come.
inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Milliseconds of the clock that SecondsSince uses.
inline int64_t NowMs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace varve::internal
