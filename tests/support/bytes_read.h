// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace varve::internal::testing {

// Bytes that this process has read from files.
inline uint64_t BytesRead() {
  std::ifstream lines("/proc/self/io");
  std::string name;
  uint64_t value = 0;
  while (lines >> name >> value) {
    if (name == "rchar:") return value;
  }
  ADD_FAILURE() << "/proc/self/io has no rchar";
  return 0;
}

}  // namespace varve::internal::testing
