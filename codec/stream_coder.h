// SPDX-License-Identifier: Apache-2.0
//
// A stream is one plane of a chunk in its smallest cheap form: tag, length, body. docs/frame.md
// describes every coder. Streams nest: a sparse stream holds its bitmap and its values as streams.
//
//   StreamEncoder encoder;
//   encoder.Append(plane, &payload);
//   ByteReader reader(payload);
//   StreamDecoder decoder;
//   decoder.Decode(&reader, plane);  // plane.size() bytes, known from outside
//
// Thread rule: one thread at a time an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/coding.h"
#include "codec/zstd_coder.h"
#include "varve/status.h"

namespace varve {

// How a stream is stored. On disk; never renumber.
enum class StreamCoder : uint8_t {
  kRaw = 0,       // the bytes themselves
  kConstant = 1,  // one byte, repeated
  kZstd = 2,      // an ordinary zstd frame
};

class StreamEncoder {
 public:
  // Appends the stream of `data` to *out.
  void Append(std::span<const std::byte> data, std::vector<std::byte>* out);

 private:
  ZstdCompressor zstd_;
};

class StreamDecoder {
 public:
  // Takes one stream of exactly out.size() bytes off the reader. kCorruption otherwise.
  Status Decode(ByteReader* reader, std::span<std::byte> out);

 private:
  ZstdDecompressor zstd_;
};

}  // namespace varve
