// SPDX-License-Identifier: Apache-2.0
//
// Reads the raw bytes of a chunk reference and verifies them. It fetches the frame, decodes the
// chain of its bases from the far end, and checks the digest of every link before it uses the link.
// It checks the digest of the result before it returns it. Thread rule: any thread, each with its
// own ChunkScratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/frame.h"
#include "store/db/database.h"
#include "store/format/record.h"
#include "varve/result.h"

namespace varve::internal {

// Buffers that one thread reuses from chunk to chunk.
struct ChunkScratch {
  FrameDecoder decoder;
  std::vector<std::byte> bytes;
  std::vector<std::byte> previous;
  std::vector<std::byte> source;
};

// A stored chunk as a base for a delta.
struct StoredChunk {
  FrameInfo info;
  uint32_t frame_bytes = 0;
  std::vector<std::byte> raw;
};

// The most frames of a chain. Writers stay below this whatever their options say. Hostile bytes
// might not.
inline constexpr int kMaxChain = 64;

class ChunkReader {
 public:
  ChunkReader(const Database* database, uint64_t digest_seed)
      : database_(database), digest_seed_(digest_seed) {}

  // `out` must have exactly ref.raw_bytes. kNotFound: the frame is missing (a reader beside a
  // writer may be behind). kCorruption: the bytes differ from what was written.
  Status Read(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
              ChunkScratch* scratch) const;

  // As Read, for a derived chunk whose verified source is in memory already.
  Status MakeDerived(const ChunkRef& ref, DType dtype, std::span<const std::byte> source,
                     std::span<std::byte> out) const;

  // Reads the frame at an address, its base, the base's base and so on down to the keyframe. Each
  // is decoded and verified against its own header. result.front() is the frame itself.
  Result<std::vector<StoredChunk>> ReadChain(ChunkAddress address, ChunkScratch* scratch) const;

 private:
  // Decodes the frame at `address` into `out`. Its digest must be `expected`, or else the digest in
  // its own header.
  Status ReadFrame(ChunkAddress address, const std::optional<Digest>& expected,
                   std::span<std::byte> out, ChunkScratch* scratch) const;
  Status ReadDerived(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
                     ChunkScratch* scratch) const;
  Status CheckDigest(ChunkAddress address, std::span<const std::byte> raw,
                     const Digest& expected) const;
  // The frames from `address` down to the keyframe.
  struct Link {
    ChunkAddress address;
    FrameInfo info;
    rocksdb::PinnableSlice frame;
  };
  Result<std::vector<Link>> FetchChain(ChunkAddress address) const;

  const Database* const database_;
  const uint64_t digest_seed_;
};

}  // namespace varve::internal
