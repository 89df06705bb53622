// SPDX-License-Identifier: Apache-2.0
//
// Decodes the literals of a zstd block (RFC 8878, 4.2.2): four streams of one Huffman code, side by
// side. A look at the next 11 bits gives up to three symbols, where zstd's decoder gives one, or
// two where these are very likely. Takes hostile bytes. Every level gives the same bytes.
//
//   HuffmanDecoder decoder(DetectCpu());
//   decoder.SetCode(code);
//   bool ok = decoder.Decode(four_streams, out);
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "codec/entropy/flat_code.h"
#include "codec/entropy/huffman_code.h"

namespace varve {

class HuffmanDecoder {
 public:
  explicit HuffmanDecoder(CpuLevel level) : level_(level) {}
  // Makes the table for the code of what is decoded next.
  void SetCode(const HuffmanCode& code);
  // `in` is the sizes of the first three streams and the streams. False, and anything in `out`,
  // unless they hold exactly out.size() symbols; also when they are very short.
  [[nodiscard]] bool Decode(std::span<const std::byte> in, std::span<uint8_t> out) const;

 private:
  // By the next kMaxCodeBits bits of a stream: bits 0 to 5 are the length of the codes together,
  // bits 6 to 29 their symbols, bits 30 and 31 how many they are.
  using Table = std::array<uint32_t, size_t{1} << kMaxCodeBits>;

  CpuLevel level_;
  // No constant, because a shift by a register takes an instruction less.
  unsigned shift_ = 64 - kMaxCodeBits;
  Table one_{};    // with one symbol each
  Table table_{};  // with as many as fit, unless the code is flat
  FlatCode flat_;
};

}  // namespace varve
