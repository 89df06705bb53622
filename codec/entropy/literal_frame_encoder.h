// SPDX-License-Identifier: Apache-2.0
//
// Writes zstd frames whose blocks hold literals and no matches, faster than zstd itself.
//
//   LiteralFrameEncoder encoder(DetectCpu());
//   size_t bytes = encoder.Encode(in, out);  // 0: does not fit
//
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/coding.h"
#include "base/cpu.h"
#include "codec/entropy/huffman_encoder.h"

namespace varve::internal {

class LiteralFrameEncoder {
 public:
  explicit LiteralFrameEncoder(CpuLevel level) : huffman_(level) {}
  // Returns the bytes written to `out`, or 0 when they do not fit there.
  size_t Encode(std::span<const uint8_t> in, std::span<std::byte> out);

 private:
  void PutBlock(std::span<const uint8_t> block, bool last, ByteWriter* to);

  HuffmanEncoder huffman_;
  HuffmanCode code_;  // code of the earlier blocks of this frame
};

}  // namespace varve::internal
