// SPDX-License-Identifier: Apache-2.0
//
// Reads a stream (see stream_encoder.h). Takes hostile bytes.
//
//   ByteReader reader(payload);
//   StreamDecoder decoder(DetectCpu());
//   decoder.Decode(&reader, {plane, num_bytes});  // the size is known from outside
//
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/byte_buffer.h"
#include "base/coding.h"
#include "base/cpu.h"
#include "codec/entropy/rans.h"
#include "codec/entropy/stream_format.h"
#include "codec/entropy/zstd_coder.h"
#include "varve/status.h"

namespace varve::internal {

class StreamDecoder {
 public:
  explicit StreamDecoder(CpuLevel level) : level_(level), rans_(level) {}
  // Takes one stream of exactly out.size() bytes off the reader. kCorruption otherwise.
  Status Decode(ByteReader* reader, std::span<uint8_t> out);
  // Takes the header of a stream off the reader, which gives `coder`, and then its body.
  static Status TakeStream(ByteReader* reader, StreamCoder* coder,
                           std::span<const std::byte>* body);
  // The same for a stream whose header has been taken already.
  Status DecodeBody(StreamCoder coder, std::span<const std::byte> body, std::span<uint8_t> out) {
    return DecodeBodyAt(0, coder, body, out);
  }

 private:
  Status DecodeAt(int depth, ByteReader* reader, std::span<uint8_t> out);
  Status DecodeBodyAt(int depth, StreamCoder coder, std::span<const std::byte> body,
                      std::span<uint8_t> out);
  Status DecodeSparse(int depth, std::span<const std::byte> body, std::span<uint8_t> out);
  Status DecodeNibbles(int depth, std::span<const std::byte> body, std::span<uint8_t> out);
  Status DecodeHalves(int depth, std::span<const std::byte> body, std::span<uint8_t> out);
  Status DecodeNested(int depth, StreamCoder coder, std::span<const std::byte> body,
                      std::span<uint8_t> out);

  struct Parts {
    ByteBuffer first;
    ByteBuffer second;
  };

  CpuLevel level_;
  ZstdDecompressor zstd_;
  RansDecoder rans_;
  std::array<Parts, kMaxStreamDepth> parts_;
};

}  // namespace varve::internal
