// SPDX-License-Identifier: Apache-2.0
//
// Writes the streams of literals in a zstd block (RFC 8878, 4.2.2): one of few symbols, and else
// four of a quarter each. A stream is the codes of its symbols, from the last one to the first.
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

namespace varve {

class HuffmanEncoder {
 public:
  static constexpr size_t kMinFourStreams = 256;

  explicit HuffmanEncoder(CpuLevel level) : level_(level) {}
  // Counts the symbols to encode, at most 2^17, or tells from a sample that some of them are all as
  // frequent. They must stay where they are.
  ByteCounts Look(std::span<const uint8_t> in);
  // Every symbol that occurs has a code.
  void SetCode(const HuffmanCode& code);
  // The sizes of all streams but the last, and the streams. Valid until the next call.
  std::span<const std::byte> Encode();

 private:
  // Symbols that lie no further apart are counted and coded two at a time when they are many.
  static constexpr size_t kPairRange = 32;

  ByteCounts CountPairs();
  void SetPairs(const HuffmanCode& code);

  CpuLevel level_;
  std::span<const uint8_t> in_;
  std::array<uint64_t, 256> table_{};  // by symbol
  FlatCode flat_;
  bool paired_ = false;
  uint8_t lowest_ = 0;           // symbol of those in pairs
  std::vector<uint16_t> pairs_;  // numbers of the pairs, the first symbol lowest
  std::array<uint64_t, kPairRange * kPairRange> pair_table_{};
  ByteBuffer streams_;
};

}  // namespace varve
