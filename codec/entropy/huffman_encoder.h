// SPDX-License-Identifier: Apache-2.0
//
// Writes the streams of literals in a zstd block (RFC 8878, 4.2.2). Few symbols make one stream.
// More make four streams of a quarter each. A stream is the codes of its symbols, from the last one
// to the first.
//
//   HuffmanEncoder encoder(DetectCpu());
//   encoder.SetCode(MakeHuffmanCode(encoder.Look(in)));
//   std::span<const std::byte> streams = encoder.Encode();
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_buffer.h"
#include "base/cpu.h"
#include "codec/entropy/flat_code.h"
#include "codec/entropy/huffman_code.h"

namespace varve::internal {

class HuffmanEncoder {
 public:
  static constexpr size_t kMinFourStreams = 256;

  explicit HuffmanEncoder(CpuLevel level) : level_(level) {}
  // Counts the symbols to encode, at most 2^17. Where a sample shows that some symbols are all
  // equally frequent, it does not count. `in` must stay in place until Encode returns.
  ByteCounts Look(std::span<const uint8_t> in);
  // `code` must have a code for every symbol that occurs.
  void SetCode(const HuffmanCode& code);
  // Returns the sizes of all streams but the last, then the streams. Valid until the next call.
  std::span<const std::byte> Encode();

 private:
  // If all symbols lie within this range, and are many, they are counted and coded two at a time.
  static constexpr size_t kPairRange = 32;

  ByteCounts CountPairs();
  void SetPairs(const HuffmanCode& code);

  CpuLevel level_;
  std::span<const uint8_t> in_;
  std::array<uint64_t, 256> table_{};  // by symbol
  FlatCode flat_;
  bool paired_ = false;
  uint8_t lowest_ = 0;           // lowest symbol of those in pairs
  std::vector<uint16_t> pairs_;  // each pair as one number, the first symbol in the low part
  std::array<uint64_t, kPairRange * kPairRange> pair_table_{};
  ByteBuffer streams_;
};

}  // namespace varve::internal
