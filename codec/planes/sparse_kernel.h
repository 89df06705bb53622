// SPDX-License-Identifier: Apache-2.0
//
// Ways to make a plane shorter before it is entropy-coded. For a plane of mostly small bytes there
// are two. One is a bitmap with the non-zero bytes packed behind it. The other puts two half bytes
// into one, with an escape for large bytes. For bytes with noise in their low half, low and high
// halves are taken apart, and two of a kind are put into one byte. Both kinds of halves join two
// symbols to one. That lowers the least cost of a Huffman code, which is one bit a symbol, and
// halves its time. Every level gives the same bytes. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace varve::internal {

// Kernels may read or write this many bytes past the end of packed values and escapes.
inline constexpr size_t kPackSlack = 64;
inline constexpr uint8_t kNibbleEscape = 15;

// Sets bit i % 8 of bitmap[i / 8] when data[i] is not zero. Unused bits are zero. Returns the
// number of values. `values` has room for n + kPackSlack.
size_t PackNonZeros(CpuLevel level, const uint8_t* data, size_t n, uint8_t* bitmap,
                    uint8_t* values);
// Returns the number of bits set in the bitmap of n elements.
size_t CountNonZeros(CpuLevel level, const uint8_t* bitmap, size_t n);
// `values` holds CountNonZeros bytes and kPackSlack more.
void UnpackNonZeros(CpuLevel level, const uint8_t* bitmap, const uint8_t* values, size_t n,
                    uint8_t* data);

// Sets half byte i of `pairs` (low half first) to min(data[i], 15). Bytes of 15 and above are also
// appended whole to `escapes`, which has room for n + kPackSlack. Returns the number of escapes.
// The last half byte is zero when n is odd.
size_t PackNibbles(CpuLevel level, const uint8_t* data, size_t n, uint8_t* pairs, uint8_t* escapes);
size_t CountEscapes(CpuLevel level, const uint8_t* pairs, size_t n);
// `escapes` holds CountEscapes bytes and kPackSlack more.
void UnpackNibbles(CpuLevel level, const uint8_t* pairs, const uint8_t* escapes, size_t n,
                   uint8_t* data);

// Copies the low half of byte i of `data` to half byte i of `low`, and the high half to half byte i
// of `high`. The last half bytes are zero when n is odd. Both outputs hold (n + 1) / 2 bytes.
void SplitHalves(CpuLevel level, const uint8_t* data, size_t n, uint8_t* low, uint8_t* high);
void JoinHalves(CpuLevel level, const uint8_t* low, const uint8_t* high, size_t n, uint8_t* data);

}  // namespace varve::internal
