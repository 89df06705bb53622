// SPDX-License-Identifier: Apache-2.0
//
// Counts how often each byte occurs. Stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace varve::internal {

using ByteCounts = std::array<uint32_t, 256>;

inline ByteCounts CountBytes(std::span<const uint8_t> bytes) {
  // There are four sets of counters, because with one set a byte that equals its neighbour would
  // wait for the neighbour's store.
  std::array<ByteCounts, 4> counts{};
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    for (size_t k = 0; k < 8; ++k) ++counts[k % 4][(word >> (8 * k)) & 0xFF];
  }
  for (; i < bytes.size(); ++i) ++counts[0][bytes[i]];
  ByteCounts sum;
  for (size_t v = 0; v < sum.size(); ++v) {
    sum[v] = (counts[0][v] + counts[1][v]) + (counts[2][v] + counts[3][v]);
  }
  return sum;
}

}  // namespace varve::internal
