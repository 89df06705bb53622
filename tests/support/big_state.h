// SPDX-License-Identifier: Apache-2.0
//
// A state as large as a test asks for, and what it costs to save it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/step_content.h"

namespace varve::internal::testing {

// One allocation for all tensors, like a trainer's arena. The tensors are views into it.
struct BigState {
  std::vector<float> values;
  std::vector<std::string> names;
  std::vector<int64_t> elements;
};

// A few large tensors and many small ones. Half of them are weights near zero, half are noise.
inline BigState MakeBigState(uint64_t bytes) {
  BigState state;
  state.values.resize(bytes / sizeof(float));
  const int64_t large = static_cast<int64_t>(state.values.size() / 5);
  int64_t left = static_cast<int64_t>(state.values.size());
  while (left > 0) {
    const bool small = state.names.size() % 4 == 3;
    const int64_t count = std::min<int64_t>(left, small ? 10'007 : large);
    state.names.push_back("tensor." + std::to_string(state.names.size()));
    state.elements.push_back(count);
    left -= count;
  }
  for (size_t i = 0; i < state.values.size(); ++i) {
    const auto bits = static_cast<uint32_t>(Mix(31, i));
    const bool weight = (i >> 20) % 2 == 0;
    const uint32_t word = weight ? (0x3c000000u | (bits & 0x80ffffffu)) : bits;
    std::memcpy(&state.values[i], &word, sizeof(word));
  }
  return state;
}

// Flips low mantissa bits, as a training step does.
inline void Drift(BigState* state, uint64_t step) {
  for (size_t i = 0; i < state->values.size(); ++i) {
    uint32_t word;
    std::memcpy(&word, &state->values[i], sizeof(word));
    word ^= static_cast<uint32_t>(Mix(step, i)) & 0x3f;
    std::memcpy(&state->values[i], &word, sizeof(word));
  }
}

// Lets VmHWM start again at what is resident now.
inline void ResetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  if (!file)
    throw std::runtime_error("/proc/self/clear_refs cannot be written: no peak to measure");
}

// A value of /proc/self/status in bytes: "VmHWM:" is the peak since then, "VmRSS:" what is resident
// now.
inline uint64_t MemoryBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field))
      return std::strtoull(line.c_str() + field.size(), nullptr, 10) << 10;
  }
  return 0;
}

}  // namespace varve::internal::testing
