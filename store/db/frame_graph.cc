// SPDX-License-Identifier: Apache-2.0
#include "store/db/frame_graph.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "codec/frame_header.h"
#include "codec/planes/copy_kernel.h"

namespace varve::internal {

std::string FrameName(ChunkAddress address) {
  return "frame " + std::to_string(address.save_id) + "/" + std::to_string(address.ordinal);
}

Status CheckDigest(ChunkAddress address, std::span<const std::byte> raw, uint64_t digest_seed,
                   const Digest& expected) {
  const Digest found = ComputeDigest(digest_seed, raw);
  if (found == expected) return Status::Ok();
  return Status::Corruption(FrameName(address) + " decodes to digest " + ToHex(found) +
                            ", expected " + ToHex(expected));
}

// Reads a frame whose address is smaller than those of all that are there.
Status FrameGraph::Add(const Database& database, const FetchedFrames* fetched, Link link) {
  const auto* const found = fetched == nullptr ? nullptr : fetched->Find(link.address);
  if (found != nullptr) {
    link.frame.PinSlice(*found, nullptr);
  } else {
    VARVE_RETURN_IF_ERROR(database.GetFrame(link.address, &link.frame));
  }
  Result<FrameInfo> info = ParseFrame(FrameBytes(link.frame));
  if (!info.ok()) return info.status().WithContext(FrameName(link.address));
  link.info = *std::move(info);
  // Whoever reads the frame for itself believes its header.
  if (link.wanted.has_value() && link.info.digest != *link.wanted) {
    return Status::Corruption(FrameName(link.address) + " says that it holds digest " +
                              ToHex(link.info.digest) + ", expected " + ToHex(*link.wanted));
  }
  for (const FrameSource& source : link.info.sources()) {
    if (source.address < link.address) continue;
    return Status::Corruption(FrameName(link.address) + ": its source " +
                              FrameName(source.address) + " has no smaller address");
  }
  // So what is hostile takes no more memory than so many chunks and their frames. A chunk that gets
  // no smaller is stored as it is.
  if (link.frame.size() > link.info.raw_bytes + kMaxHeaderBytes) {
    return Status::Corruption(FrameName(link.address) + " has " +
                              std::to_string(link.frame.size()) + " bytes, and its chunk has " +
                              std::to_string(link.info.raw_bytes));
  }
  if (!links_.empty() && link.info.raw_bytes != links_.front().info.raw_bytes) {
    return Status::Corruption(FrameName(link.address) + " holds " +
                              std::to_string(link.info.raw_bytes) + " raw bytes, and " +
                              FrameName(links_.front().address) + ", which needs it, " +
                              std::to_string(links_.front().info.raw_bytes));
  }
  if (links_.size() == kMaxFrames) {
    return Status::Corruption(FrameName(links_.front().address) + " needs more than " +
                              std::to_string(links_.size()) + " frames");
  }
  links_.push_back(std::move(link));
  return Status::Ok();
}

Result<FrameGraph> FrameGraph::Fetch(const Database& database, ChunkAddress address,
                                     const FetchedFrames* fetched) {
  FrameGraph graph;
  std::vector<Link> wanted(1);
  wanted[0].address = address;
  VARVE_RETURN_IF_ERROR(graph.Fetch(database, fetched, std::move(wanted)));
  return graph;
}

Result<FrameGraph> FrameGraph::Fetch(const Database& database, std::span<const FrameSource> chunks,
                                     const FetchedFrames* fetched) {
  FrameGraph graph;
  std::vector<Link> wanted;
  for (const FrameSource& chunk : chunks) VARVE_RETURN_IF_ERROR(Want(chunk, 1, &wanted).status());
  VARVE_RETURN_IF_ERROR(graph.Fetch(database, fetched, std::move(wanted)));
  return graph;
}

// Adds a chunk to those that are wanted, which are by rising address.
Result<FrameGraph::Link*> FrameGraph::Want(const FrameSource& chunk, int depth,
                                           std::vector<Link>* wanted) {
  auto place = std::ranges::lower_bound(*wanted, chunk.address, {}, &Link::address);
  if (place == wanted->end() || place->address != chunk.address) {
    place = wanted->emplace(place);
    place->address = chunk.address;
    place->wanted = chunk.digest;
  } else if (place->wanted != chunk.digest) {
    return Status::Corruption(FrameName(chunk.address) + " is expected to have digest " +
                              ToHex(chunk.digest) + ", and elsewhere " + ToHex(*place->wanted));
  }
  place->depth = std::max(place->depth, depth);
  return &*place;
}

Status FrameGraph::Fetch(const Database& database, const FetchedFrames* fetched,
                         std::vector<Link> wanted) {
  while (!wanted.empty()) {
    Link link = std::move(wanted.back());
    wanted.pop_back();
    VARVE_RETURN_IF_ERROR(Add(database, fetched, std::move(link)));
    const Link& user = links_.back();
    for (const FrameSource& source : user.info.sources()) {
      Result<Link*> used = Want(source, user.depth + 1, &wanted);
      if (!used.ok()) return used.status().WithContext(FrameName(user.address));
      ++(*used)->num_users;
      if ((*used)->depth > kMaxChain) {
        return Status::Corruption(FrameName(user.address) + ": more than " +
                                  std::to_string(kMaxChain) + " frames in its chain");
      }
    }
  }
  num_live_ = CountLive();
  if (num_live_ <= kMaxLiveChunks) return Status::Ok();
  return Status::Corruption(FrameName(links_.front().address) + " needs " +
                            std::to_string(num_live_) + " decoded chunks at one time, expected " +
                            std::to_string(kMaxLiveChunks) + " at most");
}

size_t FrameGraph::CountLive() const {
  std::vector<uint32_t> num_users;
  for (const Link& link : links_) num_users.push_back(link.num_users);
  size_t live = 0, most = 0;
  for (auto link = links_.rbegin(); link != links_.rend(); ++link) {
    most = std::max(most, ++live);
    for (const FrameSource& source : link->info.sources()) {
      if (--num_users[IndexOf(source.address)] == 0) --live;
    }
  }
  return most;
}

size_t FrameGraph::IndexOf(ChunkAddress address) const {
  const auto place = std::ranges::lower_bound(links_, address, std::greater(), &Link::address);
  return static_cast<size_t>(place - links_.begin());
}

// The chunks that have been decoded and are still needed.
class FrameGraph::Decoding {
 public:
  Decoding(const FrameGraph* graph, uint64_t digest_seed, FrameScratch* scratch)
      : graph_(graph), digest_seed_(digest_seed), scratch_(scratch) {
    chunks_.resize(graph->links_.size());
    scratch->idle.reserve(kMaxIdle + 1);  // no buffer is lost for a lack of memory
  }
  ~Decoding() {
    for (Chunk& chunk : chunks_) Release(&chunk);
  }
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  // Decodes a frame whose sources have been decoded. Its bytes are in `out`, unless that is empty.
  Status Decode(size_t i, const Digest& expected, std::span<std::byte> out) {
    const Link& link = graph_->links_[i];
    Chunk& chunk = chunks_[i];
    chunk.num_users = link.num_users;
    if (link.info.predictor == Predictor::kRaw) {
      const auto raw = RawPayload(FrameBytes(link.frame));
      if (!raw.ok()) return raw.status().WithContext(FrameName(link.address));
      // The digest is checked while the bytes are in the cache, before they are copied past it.
      VARVE_RETURN_IF_ERROR(CheckDigest(link.address, *raw, digest_seed_, expected));
      if (!out.empty()) CopyPastCache(*raw, out);
      chunk.raw = *raw;
      return Status::Ok();
    }
    FrameSourceBytes sources;
    for (size_t s = 0; s < link.info.num_sources; ++s) {
      sources[s] = chunks_[graph_->IndexOf(link.info.sources()[s].address)].raw;
    }
    if (out.empty()) {
      if (!scratch_->idle.empty()) {
        chunk.buffer = std::move(scratch_->idle.back());
        scratch_->idle.pop_back();
      }
      out = chunk.buffer.Resize(link.info.raw_bytes);
    }
    const Status decoded = scratch_->decoder.Decode(FrameBytes(link.frame), sources, out);
    if (!decoded.ok()) return decoded.WithContext(FrameName(link.address));
    VARVE_RETURN_IF_ERROR(CheckDigest(link.address, out, digest_seed_, expected));
    chunk.raw = out;
    for (const FrameSource& source : link.info.sources()) {
      Chunk& used = chunks_[graph_->IndexOf(source.address)];
      if (--used.num_users == 0) Release(&used);
    }
    return Status::Ok();
  }

 private:
  static constexpr size_t kMaxIdle = 8;  // buffers that are kept for the next chunk

  struct Chunk {
    std::span<const std::byte> raw;
    ReusedBuffer buffer;
    uint32_t num_users = 0;
  };

  void Release(Chunk* chunk) {
    if (chunk->buffer.bytes().empty()) return;
    if (scratch_->idle.size() < kMaxIdle) scratch_->idle.push_back(std::move(chunk->buffer));
    chunk->buffer = ReusedBuffer();
  }

  const FrameGraph* const graph_;
  const uint64_t digest_seed_;
  FrameScratch* const scratch_;
  std::vector<Chunk> chunks_;
};

Status FrameGraph::Decode(uint64_t digest_seed, const std::optional<Digest>& expected,
                          std::span<std::byte> out, FrameScratch* scratch) const {
  Decoding decoding(this, digest_seed, scratch);
  for (size_t i = links_.size(); i-- > 1;) {
    VARVE_RETURN_IF_ERROR(decoding.Decode(i, ExpectedOf(i), {}));
  }
  return decoding.Decode(0, expected.value_or(ExpectedOf(0)), out);
}

std::vector<ChunkAddress> FrameGraph::BasesOf(ChunkAddress address) const {
  std::vector<ChunkAddress> bases = {address};
  while (const FrameSource* const base = InfoOf(bases.back()).base()) {
    bases.push_back(base->address);
  }
  return bases;
}

std::map<ChunkAddress, uint32_t> FrameGraph::FramesOf(ChunkAddress address) const {
  std::map<ChunkAddress, uint32_t> frames;
  std::set<ChunkAddress> left = {address};
  while (!left.empty()) {
    const ChunkAddress next = *left.rbegin();
    left.erase(next);
    frames.emplace(next, FrameBytesOf(next));
    for (const FrameSource& source : InfoOf(next).sources()) left.insert(source.address);
  }
  return frames;
}

Result<std::vector<StoredChunk>> FrameGraph::Decode(uint64_t digest_seed,
                                                    std::span<const ChunkAddress> chunks,
                                                    FrameScratch* scratch) const {
  std::vector<StoredChunk> decoded(chunks.size());
  std::vector<std::span<std::byte>> out;
  for (size_t k = 0; k < chunks.size(); ++k) {
    decoded[k].address = chunks[k];
    decoded[k].info = InfoOf(chunks[k]);
    decoded[k].frame_bytes = FrameBytesOf(chunks[k]);
    out.push_back(decoded[k].raw.Resize(decoded[k].info.raw_bytes));
  }
  VARVE_RETURN_IF_ERROR(DecodeInto(digest_seed, chunks, out, scratch));
  return decoded;
}

Status FrameGraph::DecodeInto(uint64_t digest_seed, std::span<const ChunkAddress> chunks,
                              std::span<const std::span<std::byte>> out,
                              FrameScratch* scratch) const {
  std::vector<std::span<std::byte>> targets(links_.size());
  std::set<ChunkAddress> needed;
  for (size_t k = 0; k < chunks.size(); ++k) {
    targets[IndexOf(chunks[k])] = out[k];
    for (const auto& [address, bytes] : FramesOf(chunks[k])) needed.insert(address);
  }
  Decoding decoding(this, digest_seed, scratch);
  for (const ChunkAddress address : needed) {
    const size_t i = IndexOf(address);
    VARVE_RETURN_IF_ERROR(decoding.Decode(i, ExpectedOf(i), targets[i]));
  }
  return Status::Ok();
}

}  // namespace varve::internal
