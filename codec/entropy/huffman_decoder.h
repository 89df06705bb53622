// SPDX-License-Identifier: Apache-2.0
//
// Decodes the literals of a zstd block (RFC 8878, 4.2.2): four streams of one Huffman code, side by
// side. One look at the next 11 bits gives up to three symbols. zstd's decoder gets one from it, or
// two if these are very likely. Takes hostile bytes. Every level gives the same bytes.
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

namespace varve::internal {

class HuffmanDecoder {
 public:
  explicit HuffmanDecoder(CpuLevel level) : level_(level) {}
  // Makes the table for the code of the streams that are decoded next.
  void SetCode(const HuffmanCode& code);
  // `in` holds the sizes of the first three streams, then the four streams. Returns false unless
  // they hold exactly out.size() symbols, and also when the streams are very short. `out` then
  // holds anything.
  [[nodiscard]] bool Decode(std::span<const std::byte> in, std::span<uint8_t> out) const;

 private:
  // The index is the next kMaxCodeBits bits of a stream. In an entry, bits 0 to 5 are the total
  // length of the codes, bits 6 to 29 their symbols, and bits 30 and 31 the number of symbols.
  using Table = std::array<uint32_t, size_t{1} << kMaxCodeBits>;

  CpuLevel level_;
  // This is not a constant, because a shift by a register takes one instruction less.
  unsigned shift_ = 64 - kMaxCodeBits;
  Table one_{};    // one symbol in each entry
  Table table_{};  // as many symbols as fit in each entry, unless the code is flat
  FlatCode flat_;
};

}  // namespace varve::internal
