// SPDX-License-Identifier: Apache-2.0
//
// An entropy coder for bytes of few different values, such as the exponents of weights. It is made
// for wide registers: up to 256 rANS coders run side by side. docs/frame.md describes its bytes,
// which do not depend on the processor. It decodes hostile bytes.
//
//   RansEncoder encoder(DetectCpu());
//   size_t bytes = encoder.Encode(in, out);  // 0: does not fit, so it would not be smaller
//   RansDecoder decoder(DetectCpu());
//   Status status = decoder.Decode(body, out);  // the size is known from outside
//
// Thread rule: one thread at a time an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/byte_buffer.h"
#include "base/cpu.h"
#include "codec/entropy/rans_table.h"
#include "varve/status.h"

namespace varve::internal {

// The bytes of a body besides its streams and frequencies, at most.
inline constexpr size_t kRansFixedBytes = 3 + 1 + 5 * 4 + 512;

// Groups of 64 lanes for a stream of so many bytes. More groups are faster, because the processor
// works on all of them at once. But their states take 128 bytes each.
size_t RansGroupsFor(size_t num_bytes);

class RansEncoder {
 public:
  explicit RansEncoder(CpuLevel level) : level_(level) {}
  // Returns the bytes written to `out`, or 0 when they do not fit there.
  size_t Encode(std::span<const uint8_t> in, std::span<std::byte> out);
  // The same with a given code, and 1, 2 or 4 groups.
  size_t EncodeWith(const RansCode& code, size_t num_groups, std::span<const uint8_t> in,
                    std::span<std::byte> out);

 private:
  CpuLevel level_;
  ByteBuffer room_;
};

class RansDecoder {
 public:
  explicit RansDecoder(CpuLevel level) : level_(level) {}
  // kCorruption unless `body` holds exactly out.size() bytes. Many damages go unseen and change the
  // bytes.
  Status Decode(std::span<const std::byte> body, std::span<uint8_t> out) const;

 private:
  CpuLevel level_;
};

}  // namespace varve::internal
