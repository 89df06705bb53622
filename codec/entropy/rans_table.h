// SPDX-License-Identifier: Apache-2.0
//
// The code of a rANS stream: which symbols it has, and how frequent each is. A symbol is a byte
// without its lowest bits. The code covers symbols next to each other, and an escape that stands
// for all others. Frequencies are shares of 256. The escape has what the others leave, 1 or more.
//
//   RansChoice choice = BestRansCode(counts);
//   RansEncodeTable encode(choice.code);
//
// Functions are stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/planes/byte_counts.h"

namespace varve::internal {

inline constexpr size_t kMaxRansSymbols = 63;  // without the escape
inline constexpr size_t kFewRansSymbols = 15;  // with the escape they fit 16 lanes of a table
inline constexpr unsigned kMaxRansLowBits = 4;
inline constexpr size_t kRansTotal = 256;

struct RansCode {
  unsigned low_bits = 0;   // bits of a byte that are stored apart
  uint8_t first = 0;       // the lowest symbol
  size_t num_symbols = 0;  // without the escape, 1 to kMaxRansSymbols
  // By symbol, counted from `first`. The escape comes after the last one.
  std::array<uint8_t, kMaxRansSymbols + 1> frequency{};
};

// Makes the best code for bytes that occur `counts` times. These may be the counts of a sample,
// because every code has an escape.
struct RansChoice {
  RansCode code;
  double bits = 0;  // about what a byte takes, without headers
};
RansChoice MakeRansCode(const ByteCounts& counts, unsigned low_bits, size_t max_symbols);
// Tries all numbers of low bits. A code of few symbols is taken when it is nearly as good, because
// AVX2 decodes it a third faster.
RansChoice BestRansCode(const ByteCounts& counts);

// By symbol, counted from the first. Symbols without a share have the entries of the escape.
struct alignas(64) RansEncodeTable {
  explicit RansEncodeTable(const RansCode& code);

  std::array<uint8_t, kMaxRansSymbols + 1> frequency;
  std::array<uint8_t, kMaxRansSymbols + 1> start;  // the sum of the frequencies before it
  // 65536 / frequency, rounded down, and at most 65535. Also its bytes.
  std::array<uint16_t, kMaxRansSymbols + 1> reciprocal;
  std::array<uint8_t, kMaxRansSymbols + 1> reciprocal_low;
  std::array<uint8_t, kMaxRansSymbols + 1> reciprocal_high;
  unsigned low_bits;
  uint8_t first;
  uint8_t escape;  // its index
};

struct alignas(64) RansDecodeTable {
  explicit RansDecodeTable(const RansCode& code);

  std::array<uint8_t, kRansTotal> index_of;  // by slot: the symbol, counted from the first
  std::array<uint8_t, kMaxRansSymbols + 1> frequency;
  std::array<uint8_t, kMaxRansSymbols + 1> start;
  std::array<uint8_t, kMaxRansSymbols + 1> value;  // the byte without its low bits
  uint8_t escape;
  // The highest slots before each index, less 128, as search trees. The children of node n are 2n
  // (left) and 2n + 1 (right). One is for up to 16 indices, and one is for all.
  std::array<uint8_t, 16> small_tree;
  std::array<uint8_t, kMaxRansSymbols + 1> tree;
};

}  // namespace varve::internal
