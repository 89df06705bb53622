// SPDX-License-Identifier: Apache-2.0
//
// How long ago something was. A pure function of the clock.
#pragma once

#include <chrono>

namespace varve::internal {

// Negative for a time that is still to come.
inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace varve::internal
