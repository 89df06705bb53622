// SPDX-License-Identifier: Apache-2.0
//
// Decodes the zstd frames that ZstdCompressor::CompressLiterals writes. Their blocks hold literals
// and no matches. It takes only frames that it decodes faster than zstd. Takes hostile bytes.
//
//   LiteralFrameDecoder decoder(DetectCpu());
//   if (!decoder.Decode(frame, out)) ...  // no such frame, or damaged: ask zstd
//
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/coding.h"
#include "base/cpu.h"
#include "codec/entropy/huffman_decoder.h"

namespace varve::internal {

inline constexpr uint32_t kZstdMagic = 0xFD2FB528;
inline constexpr size_t kMaxZstdBlock = size_t{128} << 10;
enum class ZstdBlock : unsigned { kRaw = 0, kRepeat = 1, kCompressed = 2 };

class LiteralFrameDecoder {
 public:
  explicit LiteralFrameDecoder(CpuLevel level) : huffman_(level) {}
  // Returns false unless `frame` is a frame of out.size() literals that are many and take few bits
  // each. `out` then holds anything.
  [[nodiscard]] bool Decode(std::span<const std::byte> frame, std::span<uint8_t> out);

 private:
  // Decodes one block to the front of *out and cuts it off.
  bool DecodeBlock(ByteReader* reader, std::span<uint8_t>* out, bool* last);
  bool DecodeCompressed(std::span<const std::byte> block, std::span<uint8_t>* out);

  HuffmanDecoder huffman_;
  bool has_code_ = false;   // an earlier block of this frame had a code
  bool only_flat_ = false;  // other codes are left to zstd
};

}  // namespace varve::internal
