// SPDX-License-Identifier: Apache-2.0
//
// The description of a Huffman code in front of the literals of a zstd block (RFC 8878, 4.2.1). It
// gives the length of every symbol's code, and the code follows from that. Takes hostile bytes.
// Functions are stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/coding.h"
#include "codec/planes/byte_counts.h"

namespace varve::internal {

inline constexpr size_t kMaxCodeBits = 11;

struct HuffmanCode {
  std::array<uint8_t, 256> bits{};  // length of each symbol's code, or 0 = no such symbol
};

// Makes the best code of at most kMaxCodeBits bits a symbol, or nearly the best. At least two
// different bytes must occur, and all counts together must be below 2^24.
HuffmanCode MakeHuffmanCode(const ByteCounts& counts);

// Writes the description of a complete code to `to`, which has room for kMaxCodeDescription bytes.
// Returns the size of the description, or 0 when that room is too small for it.
inline constexpr size_t kMaxCodeDescription = 128;
size_t WriteHuffmanCode(const HuffmanCode& code, std::byte* to);

// Takes a description off the reader. Returns false when it is damaged or is none that this encoder
// writes.
[[nodiscard]] bool ReadHuffmanCode(ByteReader* reader, HuffmanCode* code);

}  // namespace varve::internal
