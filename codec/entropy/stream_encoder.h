// SPDX-License-Identifier: Apache-2.0
//
// Writes a stream: one plane, or a part of one, in the smallest form that is cheap to make. Streams
// nest: a sparse stream holds its bitmap and its values as streams.
//
//   StreamEncoder encoder(DetectCpu());
//   encoder.Append(plane, num_bytes, &payload);
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/byte_buffer.h"
#include "base/cpu.h"
#include "codec/entropy/estimate.h"
#include "codec/entropy/rans.h"
#include "codec/entropy/stream_format.h"
#include "codec/entropy/zstd_coder.h"

namespace varve::internal {

class StreamEncoder {
 public:
  explicit StreamEncoder(CpuLevel level) : level_(level), rans_coder_(level) {}
  // Says how much rANS streams are wanted. They are not wanted until it is called.
  void SetRans(RansUse rans) { rans_ = rans; }
  // The rANS streams that were written so far.
  uint64_t num_rans() const { return num_rans_; }
  // Appends the stream of n bytes to *out, at most n + kStreamHeaderBytes.
  void Append(const uint8_t* data, size_t n, ByteBuffer* out);
  // The same with the given coder, which a sample of the data has suggested.
  void Append(const uint8_t* data, size_t n, StreamCoder coder, ByteBuffer* out);
  // Also tries zstd with a search for matches, for data that may repeat itself.
  void AppendBest(const uint8_t* data, size_t n, ByteBuffer* out);
  // Appends what stands before n raw bytes.
  static void AppendRawHeader(size_t n, ByteBuffer* out);
  // Appends the stream of one byte, repeated.
  static void AppendConstant(uint8_t value, ByteBuffer* out);

 private:
  void AppendAt(int depth, const uint8_t* data, size_t n, ByteBuffer* out);
  void AppendAs(int depth, StreamCoder coder, const uint8_t* data, size_t n, ByteBuffer* out);
  bool AppendZstd(const uint8_t* data, size_t n, ByteBuffer* out, bool matches);
  bool AppendRans(const uint8_t* data, size_t n, ByteBuffer* out);
  bool AppendSparse(int depth, const uint8_t* data, size_t n, ByteBuffer* out);
  bool AppendNibbles(int depth, const uint8_t* data, size_t n, ByteBuffer* out);
  bool AppendHalves(int depth, const uint8_t* data, size_t n, ByteBuffer* out);

  // The parts of a nested stream. Each depth has its own, because they are alive together.
  struct Parts {
    ByteBuffer first;
    ByteBuffer second;
  };

  CpuLevel level_;
  RansUse rans_ = RansUse::kNever;
  uint64_t num_rans_ = 0;
  ZstdCompressor zstd_;
  RansEncoder rans_coder_;
  std::array<Parts, kMaxStreamDepth> parts_;
};

}  // namespace varve::internal
