// SPDX-License-Identifier: Apache-2.0
//
// Ways to make a plane shorter before it is entropy-coded. For mostly small bytes: a bitmap with
// the non-zero bytes packed behind, or two half bytes in one with an escape for the large ones. For
// bytes with noise in their low half: two half bytes in one, low and high halves apart. They join
// symbols, which lifts the floor of Huffman codes, one bit a symbol, and halves their time. Every
// level gives the same bytes. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace varve {

// Bytes past the end of packed values and escapes that the kernels may touch.
inline constexpr size_t kPackSlack = 64;
inline constexpr uint8_t kNibbleEscape = 15;

// Bit i % 8 of bitmap[i / 8] says that data[i] is not zero; unused bits are zero. Returns the
// number of values. `values` has room for n + kPackSlack.
size_t PackNonZeros(CpuLevel level, const uint8_t* data, size_t n, uint8_t* bitmap,
                    uint8_t* values);
// Returns the number of bits set in the bitmap of n elements.
size_t CountNonZeros(CpuLevel level, const uint8_t* bitmap, size_t n);
// `values` holds CountNonZeros bytes and kPackSlack.
void UnpackNonZeros(CpuLevel level, const uint8_t* bitmap, const uint8_t* values, size_t n,
                    uint8_t* data);

// Half byte i of `pairs` (low half first) is min(data[i], 15); bytes of 15 and above are also
// appended to `escapes` whole. Returns the number of escapes, which has room for n + kPackSlack.
// The last half byte is zero when n is odd.
size_t PackNibbles(CpuLevel level, const uint8_t* data, size_t n, uint8_t* pairs, uint8_t* escapes);
size_t CountEscapes(CpuLevel level, const uint8_t* pairs, size_t n);
// `escapes` holds CountEscapes bytes and kPackSlack.
void UnpackNibbles(CpuLevel level, const uint8_t* pairs, const uint8_t* escapes, size_t n,
                   uint8_t* data);

// Low half byte i of `data` to half byte i of `low`, high half byte i to half byte i of `high`; the
// last ones are zero when n is odd. Both hold (n + 1) / 2 bytes.
void SplitHalves(CpuLevel level, const uint8_t* data, size_t n, uint8_t* low, uint8_t* high);
void JoinHalves(CpuLevel level, const uint8_t* low, const uint8_t* high, size_t n, uint8_t* data);

}  // namespace varve
