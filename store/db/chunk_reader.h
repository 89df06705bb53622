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

#include "base/reused_memory.h"
#include "codec/frame.h"
#include "store/db/database.h"
#include "store/db/fetched_frames.h"
#include "store/format/record.h"
#include "varve/result.h"

namespace varve::internal {

// Buffers that one thread reuses from chunk to chunk.
struct ChunkScratch {
  const FetchedFrames* fetched = nullptr;  // looked at before the database, if it is not null
  FrameDecoder decoder;
  ReusedBuffer bytes;
  ReusedBuffer previous;
  ReusedBuffer source;
};

// Keeps the bytes that ReadInPlace returns: a frame that holds them, or decoded bytes.
struct ChunkBuffer {
  rocksdb::PinnableSlice frame;
  ReusedBuffer decoded;
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

  // `out` must have exactly ref.raw_bytes. kNotFound: the frame is missing. A reader may
  // be behind its writer. kCorruption: the bytes differ from what was written.
  Status Read(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
              ChunkScratch* scratch) const;

  // As Read, for a caller that copies the bytes on. A chunk that is stored raw is returned where
  // its frame lies, without a copy. The result has `raw_bytes` bytes and is valid until `buffer` is
  // used again.
  Result<std::span<const std::byte>> ReadInPlace(const ChunkRef& ref, DType dtype, size_t raw_bytes,
                                                 ChunkBuffer* buffer, ChunkScratch* scratch) const;

  // True: frames that are needed together are better fetched together (ChunkScratch::fetched).
  bool is_far() const { return database_->is_far(); }
  FetchedFrames Fetch(std::vector<ChunkAddress> addresses) const {
    return FetchedFrames(*database_, std::move(addresses));
  }

  // As Read, for a derived chunk whose verified source is in memory already.
  Status MakeDerived(const ChunkRef& ref, DType dtype, std::span<const std::byte> source,
                     std::span<std::byte> out) const;

  // Reads the frame at an address, its base, the base's base and so on down to the keyframe. Each
  // is decoded and verified against its own header. result.front() is the frame itself.
  Result<std::vector<StoredChunk>> ReadChain(ChunkAddress address, ChunkScratch* scratch) const;

 private:
  // The frames from an address down to the keyframe.
  struct Link {
    ChunkAddress address;
    FrameInfo info;
    rocksdb::PinnableSlice frame;
  };
  using Chain = std::vector<Link>;
  // The chain of a frame that holds `raw_bytes`.
  Result<Chain> FetchChain(ChunkAddress address, size_t raw_bytes,
                           const ChunkScratch& scratch) const;
  Result<Chain> FetchChain(ChunkAddress address, const ChunkScratch& scratch) const;
  // Decodes the first frame of a chain into `out`. Its digest must be `expected`, or else the
  // digest in its own header.
  Status DecodeChain(const Chain& chain, const std::optional<Digest>& expected,
                     std::span<std::byte> out, ChunkScratch* scratch) const;
  // The verified bytes within a frame that holds them unchanged.
  Result<std::span<const std::byte>> RawBytes(ChunkAddress address,
                                              const rocksdb::PinnableSlice& frame,
                                              const Digest& expected) const;
  Status ReadDerived(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
                     ChunkScratch* scratch) const;
  // The chunk that a reference names must have `raw_bytes`, which its tensor leaves room for.
  static Status CheckSize(const ChunkRef& ref, size_t raw_bytes);
  Status CheckDigest(ChunkAddress address, std::span<const std::byte> raw,
                     const Digest& expected) const;

  const Database* const database_;
  const uint64_t digest_seed_;
};

}  // namespace varve::internal
