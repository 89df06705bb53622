// SPDX-License-Identifier: Apache-2.0
//
// A flat code: a Huffman code whose codes all have one length, and whose symbols lie at equal
// distances. It fits bytes in which some bits are noise and the others never change. One example is
// the low plane of the change of a second moment against its decayed base, because the sign never
// changes. Eight symbols are coded and decoded at once, in one word. Functions are stateless.
#pragma once

#include <bit>
#include <cstdint>

#include "base/cpu.h"
#include "codec/entropy/huffman_code.h"

namespace varve::internal {

struct FlatCode {
  unsigned width = 0;   // bits of each code, at most 7. 0 = the code is not flat
  unsigned shift = 0;   // symbol number i is lowest + (i << shift), and i is its code
  uint64_t lowest = 0;  // in each of eight bytes
};

inline FlatCode FlatCodeOf(const HuffmanCode& code) {
  unsigned lowest = 0;
  while (lowest < 255 && code.bits[lowest] == 0) ++lowest;
  unsigned second = lowest + 1;
  while (second < 255 && code.bits[second] == 0) ++second;
  const unsigned width = code.bits[lowest];
  if (width > 7 || second > 255 || !std::has_single_bit(second - lowest)) return {};
  const unsigned last = lowest + ((1u << width) - 1) * (second - lowest);
  if (last > 255) return {};
  // A complete code has a symbol for every number of `width` bits. So if there are that many codes
  // of this width, they are all of the code.
  for (unsigned symbol = lowest; symbol <= last; symbol += second - lowest) {
    if (code.bits[symbol] != width) return {};
  }
  return {.width = width,
          .shift = static_cast<unsigned>(std::countr_zero(second - lowest)),
          .lowest = uint64_t{lowest} * 0x0101010101010101};
}

// Returns the codes of eight symbols in 8 * width bits, with the first symbol's code at the top.
// First neighbours are moved together and change places, then pairs of them, then halves.
VARVE_INLINE inline uint64_t PackFlat(const FlatCode& flat, uint64_t symbols) {
  constexpr uint64_t kBytes = 0x00FF00FF00FF00FF;
  constexpr uint64_t kPairs = 0x0000FFFF0000FFFF;
  uint64_t x = (symbols - flat.lowest) >> flat.shift;
  x = (x & kBytes) << flat.width | (x >> 8 & kBytes);
  x = (x & kPairs) << (2 * flat.width) | (x >> 16 & kPairs);
  return (x & 0xFFFFFFFF) << (4 * flat.width) | x >> 32;
}

// The reverse of PackFlat. It ignores bits above the codes.
VARVE_INLINE inline uint64_t UnpackFlat(const FlatCode& flat, uint64_t codes) {
  const uint64_t half = (uint64_t{1} << (4 * flat.width)) - 1;
  const uint64_t pairs = ((uint64_t{1} << (2 * flat.width)) - 1) * 0x0000000100000001;
  const uint64_t bytes = ((uint64_t{1} << flat.width) - 1) * 0x0001000100010001;
  uint64_t x = (codes >> (4 * flat.width) & half) | (codes & half) << 32;
  x = (x >> (2 * flat.width) & pairs) | (x & pairs) << 16;
  x = (x >> flat.width & bytes) | (x & bytes) << 8;
  return (x << flat.shift) + flat.lowest;
}

}  // namespace varve::internal
