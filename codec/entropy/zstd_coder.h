// SPDX-License-Identifier: Apache-2.0
//
// The only file that calls zstd. A stream is one ordinary zstd frame without a checksum, because
// the digest of the chunk covers it.
//
//   ZstdCompressor zstd;
//   size_t bytes = zstd.CompressLiterals(plane, scratch);  // 0: does not fit, store it raw
//
// Thread rule: one thread at a time an object.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "varve/status.h"

namespace varve::internal {

class ZstdCompressor {
 public:
  ZstdCompressor();
  ~ZstdCompressor();
  // Entropy-coded literals without a search for matches. Returns the bytes written to `out`, or 0
  // when they do not fit there.
  size_t CompressLiterals(std::span<const std::byte> in, std::span<std::byte> out);
  // With matches, for data that repeats itself. Returns as above.
  size_t CompressMatches(std::span<const std::byte> in, std::span<std::byte> out);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

class ZstdDecompressor {
 public:
  ZstdDecompressor();
  ~ZstdDecompressor();
  // kCorruption unless `in` is one zstd frame of exactly out.size() bytes.
  Status Decompress(std::span<const std::byte> in, std::span<std::byte> out);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace varve::internal
