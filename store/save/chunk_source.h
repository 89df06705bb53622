// SPDX-License-Identifier: Apache-2.0
//
// Where the bytes of a tensor come from when they do not lie in the caller's memory as a whole:
// from another store, or from a stage that holds only what changed. Thread rule: any thread, for
// different chunks at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal {

class ChunkSource {
 public:
  ChunkSource() = default;
  ChunkSource(const ChunkSource&) = delete;
  ChunkSource& operator=(const ChunkSource&) = delete;
  virtual ~ChunkSource() = default;

  // The digest of chunk `i`, with the store's seed, when it is known without its bytes. A chunk
  // that the store has is then shared without being read.
  virtual std::optional<Digest> KnownDigest(uint64_t i) const = 0;
  // Tells the digests of the tensor's chunks in the step that the save is compared with. They are
  // empty when it has no such tensor that is cut the same way and can be read. Called by
  // SaveSession::ReadParents, once.
  virtual void LearnParent(std::vector<Digest>&& digests) { (void)digests; }
  // True when it knows every chunk to be that of the step which the save is compared with, as
  // LearnParent has told it. The commit relies on it, and does not read the tensor's lists again.
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

// Elements that a chunk of a tensor holds; the last one may hold fewer.
uint32_t ElementsPerChunk(DType dtype);

}  // namespace varve::internal
