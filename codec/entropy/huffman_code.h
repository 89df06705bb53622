// SPDX-License-Identifier: Apache-2.0
//
// The description of a Huffman code in front of the literals of a zstd block (RFC 8878, 4.2.1): the
// length of every symbol's code, from which the code follows. Takes hostile bytes. Functions are
// stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/coding.h"
#include "codec/planes/byte_counts.h"

namespace varve {

inline constexpr size_t kMaxCodeBits = 11;

struct HuffmanCode {
  std::array<uint8_t, 256> bits{};  // of each symbol's code; 0 = there is no such symbol
};

// A code that is as good as any of at most kMaxCodeBits, or nearly so. At least two bytes occur,
// and together less than 2^24 times.
HuffmanCode MakeHuffmanCode(const ByteCounts& counts);

// Writes the description of a complete code to `to`, which has room for kMaxCodeDescription bytes.
// Returns how many they are, or 0 when there is no description of so few.
inline constexpr size_t kMaxCodeDescription = 128;
size_t WriteHuffmanCode(const HuffmanCode& code, std::byte* to);

// Takes a description off the reader. False when it is damaged, or unlike those that are written.
[[nodiscard]] bool ReadHuffmanCode(ByteReader* reader, HuffmanCode* code);

}  // namespace varve
