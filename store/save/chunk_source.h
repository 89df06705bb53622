// SPDX-License-Identifier: Apache-2.0
//
// Where the bytes of a tensor come from when they do not lie in the caller's memory as a whole:
// from another store, or from a stage that holds only what changed. Thread rule: any thread, for
// different chunks at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/result.h"

namespace varve {

class ChunkSource {
 public:
  ChunkSource() = default;
  ChunkSource(const ChunkSource&) = delete;
  ChunkSource& operator=(const ChunkSource&) = delete;
  virtual ~ChunkSource() = default;

  // The digest of chunk `i`, with the store's seed, when it is known without its bytes. A chunk
  // that the store has is then shared without being read.
  virtual std::optional<Digest> KnownDigest(uint64_t i) const = 0;
  // True when it knows every chunk to be that of the step which the save is compared with, as
  // ParentDigests has told it.
  virtual bool AreUnchanged() const { return false; }
  // The raw bytes of chunk `i`: in memory of the source that stays until the end of the save, or in
  // `*buffer`, resized. Called at most once a chunk, unless another tensor is derived from this
  // one, or the save verifies what it shares; then kNotFound says that the bytes are not at hand,
  // and the other chunk is stored for itself.
  virtual Result<std::span<const std::byte>> Read(uint64_t i, std::vector<std::byte>* buffer) = 0;
  // The digest of a chunk that has been read. An error fails the save.
  virtual Status Learn(uint64_t i, const Digest& digest) = 0;
  // The save needs chunk `i` of this tensor no more. Called once a chunk, in the order of the
  // chunks, by one thread at a time.
  virtual void Done(uint64_t i) { (void)i; }
};

// A writer that also takes tensors by source. What Store::Begin returns is one.
class SourceWriter : public CheckpointWriter {
 public:
  // As Put; `view.data` and `view.strides` have no meaning. Chunks are cut as the store cuts them
  // (ElementsPerChunk of the dtype).
  virtual Status PutSource(const TensorView& view, std::shared_ptr<ChunkSource> source) = 0;
  // Looks up all tensors in the step that the save is compared with, which is pinned. Once they are
  // put; what nobody has looked up, Commit does.
  virtual void FindParents() = 0;
  // After FindParents: the digests of a tensor's chunks in that step; empty when it has no such
  // tensor that is cut the same way and can be read. Commit relies on them where the tensor's
  // source says that nothing of it has changed, and reads its lists no more.
  virtual Result<std::vector<Digest>> ParentDigests(std::string_view name, uint32_t shard) = 0;
  virtual uint64_t digest_seed() const = 0;
  // The checkpoint has more shards elsewhere: those here need not make whole tensors.
  virtual void SetPartial() = 0;
  // Asked once, on the thread that commits, when all is stored and before anything of it can be
  // seen. It may wait. An error fails the save.
  virtual void SetCondition(std::function<Status()> may_commit) = 0;
  // Instead of the one that the save was begun with; before Commit.
  virtual void SetCompression(Compression compression) = 0;
  // Instead of the time of the commit.
  virtual void SetCreated(std::chrono::system_clock::time_point created) = 0;
  // What Commit has stored: the root digest, and the content digest of each tensor, by name, then
  // shard.
  virtual Digest root() const = 0;
  virtual std::vector<Digest> contents() const = 0;
};

// kInvalidArgument names the tensor and which rule it breaks. `has_data`: its bytes lie at
// view.data.
Status ValidateView(const TensorView& view, bool has_data);

// kInvalidArgument: a bad name, or a value above 64 MiB.
Status ValidateItem(std::string_view name, std::span<const std::byte> value);

// Elements that a chunk of a tensor holds; the last one may hold fewer.
uint32_t ElementsPerChunk(DType dtype);

}  // namespace varve
