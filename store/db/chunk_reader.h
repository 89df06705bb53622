// SPDX-License-Identifier: Apache-2.0
//
// Reads the raw bytes of a chunk reference and verifies them, with all chunks that it is predicted
// from (frame_graph.h). Thread rule: any thread, each with its own ChunkScratch.
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
#include "store/db/frame_graph.h"
#include "store/format/record.h"
#include "varve/result.h"

namespace varve::internal {

// Buffers that one thread reuses from chunk to chunk.
struct ChunkScratch {
  const FetchedFrames* fetched = nullptr;  // looked at before the database, if it is not null
  FrameScratch frames;
  ReusedBuffer source;
};

// Keeps the bytes that ReadInPlace returns: a frame that holds them, or decoded bytes.
struct ChunkBuffer {
  rocksdb::PinnableSlice frame;
  ReusedBuffer decoded;
};

class ChunkReader {
 public:
  ChunkReader(const Database* database, uint64_t digest_seed)
      : database_(database), digest_seed_(digest_seed) {}

  // `out` must have exactly ref.raw_bytes. kCorruption: a frame is missing, or the bytes differ
  // from what was written. A frame may also be missing because its step was dropped meanwhile.
  Status Read(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
              ChunkScratch* scratch) const;

  // As Read, for several stored chunks of one size and different addresses that are predicted from
  // each other, or from the same chunks. Each frame is decoded once. Any error: read them alone.
  Status ReadTogether(std::span<const ChunkRef* const> refs,
                      std::span<const std::span<std::byte>> out, ChunkScratch* scratch) const;

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

  // The frames of chunks that others may be predicted from, and these chunks, decoded and verified.
  Result<FrameGraph> FetchGraph(std::span<const FrameSource> chunks) const {
    return FrameGraph::Fetch(*database_, chunks, nullptr);
  }
  Status DecodeInto(const FrameGraph& graph, std::span<const ChunkAddress> chunks,
                    std::span<const std::span<std::byte>> out, ChunkScratch* scratch) const {
    return graph.DecodeInto(digest_seed_, chunks, out, &scratch->frames);
  }
  Result<std::vector<StoredChunk>> Decode(const FrameGraph& graph,
                                          std::span<const ChunkAddress> chunks,
                                          ChunkScratch* scratch) const {
    return graph.Decode(digest_seed_, chunks, &scratch->frames);
  }

 private:
  // The frames of a chunk that has `raw_bytes`.
  Result<FrameGraph> Fetch(ChunkAddress address, size_t raw_bytes,
                           const ChunkScratch& scratch) const;
  // The verified bytes within a frame that holds them unchanged.
  Result<std::span<const std::byte>> RawBytes(ChunkAddress address,
                                              const rocksdb::PinnableSlice& frame,
                                              const Digest& expected) const;
  Status ReadDerived(const ChunkRef& ref, DType dtype, std::span<std::byte> out,
                     ChunkScratch* scratch) const;
  // The chunk that a reference names must have `raw_bytes`, which its tensor leaves room for.
  static Status CheckSize(const ChunkRef& ref, size_t raw_bytes);

  const Database* const database_;
  const uint64_t digest_seed_;
};

}  // namespace varve::internal
