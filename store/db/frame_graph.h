// SPDX-License-Identifier: Apache-2.0
//
// The frames that some chunks need: their own, and those of all chunks that these are predicted
// from, down to frames without sources. A delta has one source, so its frames are a chain. A replay
// has up to three (adam_replay.h), and several frames may need one. Sources have smaller addresses.
// So frames are decoded in the order of their addresses, each once, and a decoded chunk is let go
// after its last use. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/reused_memory.h"
#include "base/util.h"
#include "codec/frame.h"
#include "store/db/database.h"
#include "store/db/fetched_frames.h"
#include "varve/result.h"

namespace varve::internal {

// The most frames on the way from a frame to one without sources. Writers stay below this whatever
// their options say. Hostile bytes might not.
inline constexpr int kMaxChain = 64;
// The most frames of a graph, and the most decoded chunks that are needed at one time.
inline constexpr size_t kMaxFrames = kMaxSources * kMaxChain;
inline constexpr size_t kMaxLiveChunks = 32;

// Buffers that one thread reuses from chunk to chunk.
struct FrameScratch {
  FrameDecoder decoder;
  std::vector<ReusedBuffer> idle;
};

// A stored chunk as a source of another.
struct StoredChunk {
  ChunkAddress address;
  FrameInfo info;
  uint32_t frame_bytes = 0;
  ReusedBuffer raw;
};

// For errors: "frame 3/14".
std::string FrameName(ChunkAddress address);
inline std::span<const std::byte> FrameBytes(const rocksdb::PinnableSlice& frame) {
  return AsBytes({frame.data(), frame.size()});
}

// kCorruption: the bytes that a frame decodes to do not have the digest.
Status CheckDigest(ChunkAddress address, std::span<const std::byte> raw, uint64_t digest_seed,
                   const Digest& expected);

class FrameGraph {
 public:
  // Reads the frames from the database, or from `fetched` if they are there. kNotFound: one is
  // missing. kCorruption: a header is damaged, a source has no smaller address or another size, or
  // there are more frames, or more chunks at one time, than any writer makes. The second is for
  // several chunks, whose digests are known.
  static Result<FrameGraph> Fetch(const Database& database, ChunkAddress address,
                                  const FetchedFrames* fetched);
  static Result<FrameGraph> Fetch(const Database& database, std::span<const FrameSource> chunks,
                                  const FetchedFrames* fetched);

  // True: a step that is predicted from these chunks might need more than a reader allows.
  bool is_large() const {
    return links_.size() + kMaxSources > kMaxFrames || num_live_ > kMaxLiveChunks / 2;
  }

  // Of the chunk with the greatest address.
  const FrameInfo& info() const { return links_.front().info; }
  // Its frame, which the graph gives away.
  rocksdb::PinnableSlice&& TakeFrame() { return std::move(links_.front().frame); }

  // Precondition of all that take an address: the graph has been fetched for that chunk, or needs
  // it for one.
  const FrameInfo& InfoOf(ChunkAddress address) const { return links_[IndexOf(address)].info; }
  uint32_t FrameBytesOf(ChunkAddress address) const {
    return static_cast<uint32_t>(links_[IndexOf(address)].frame.size());
  }
  // The chunk itself, its base, the base's base and so on.
  std::vector<ChunkAddress> BasesOf(ChunkAddress address) const;
  // The addresses of all frames that a chunk needs, with its own, and their bytes.
  std::map<ChunkAddress, uint32_t> FramesOf(ChunkAddress address) const;

  // Decodes the chunk with the greatest address into `out`, which has its raw bytes. Each source is
  // verified before it is used, and the result, whose digest must be `expected`, or else the digest
  // in its own header.
  Status Decode(uint64_t digest_seed, const std::optional<Digest>& expected,
                std::span<std::byte> out, FrameScratch* scratch) const;
  // Decodes and verifies these chunks into `out`, each into the span at its place, which has its
  // raw bytes. Decodes no frame that none of them needs.
  Status DecodeInto(uint64_t digest_seed, std::span<const ChunkAddress> chunks,
                    std::span<const std::span<std::byte>> out, FrameScratch* scratch) const;
  // The same, into memory of its own.
  Result<std::vector<StoredChunk>> Decode(uint64_t digest_seed,
                                          std::span<const ChunkAddress> chunks,
                                          FrameScratch* scratch) const;

 private:
  struct Link {
    ChunkAddress address;
    std::optional<Digest> wanted;  // by whoever needs it
    FrameInfo info;
    rocksdb::PinnableSlice frame;
    int depth = 1;           // from the chunks that were asked for
    uint32_t num_users = 0;  // frames that need it
  };
  class Decoding;

  Status Fetch(const Database& database, const FetchedFrames* fetched, std::vector<Link> wanted);
  size_t CountLive() const;
  static Result<Link*> Want(const FrameSource& chunk, int depth, std::vector<Link>* wanted);
  Status Add(const Database& database, const FetchedFrames* fetched, Link link);
  size_t IndexOf(ChunkAddress address) const;
  const Digest& ExpectedOf(size_t i) const {
    return links_[i].wanted.has_value() ? *links_[i].wanted : links_[i].info.digest;
  }

  std::vector<Link> links_;  // by falling address
  size_t num_live_ = 0;      // the most decoded chunks that are needed at one time
};

}  // namespace varve::internal
