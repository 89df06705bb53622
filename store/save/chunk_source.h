// SPDX-License-Identifier: Apache-2.0
//
// Gives the bytes of a tensor that does not lie in the caller's memory as a whole. It is in another
// store, or in a stage that holds only what changed.
//
// Thread rule: any thread, for different chunks at a time.
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

  // Returns the digest of chunk `i`, with the store's seed, if it is known without the bytes. If
  // the store has the chunk, it is then shared without being read.
  virtual std::optional<Digest> KnownDigest(uint64_t i) const = 0;
  // Takes the digests of the tensor's chunks in the step that the save is compared with. They are
  // empty if that step has no such tensor that is cut the same way and can be read.
  // SaveSession::ReadParents calls this once.
  virtual void LearnParent(std::vector<Digest>&& digests) { (void)digests; }
  // True if every chunk is known to equal that of the step that the save is compared with, as
  // LearnParent told it. The commit relies on this, and does not read the tensor's lists again.
  virtual bool AreUnchanged() const { return false; }
  // Returns the raw bytes of chunk `i`. They lie in memory of the source that stays until the end
  // of the save, or in `*buffer`, which is resized. It is called at most once for each chunk,
  // unless another tensor is derived from this one, or the save verifies what it shares. In these
  // cases kNotFound says that the bytes are not at hand, and the other chunk is stored by itself.
  virtual Result<std::span<const std::byte>> Read(uint64_t i, std::vector<std::byte>* buffer) = 0;
  // Takes the digest of a chunk that has been read. An error fails the save.
  virtual Status Learn(uint64_t i, const Digest& digest) = 0;
  // Says that the save does not need chunk `i` of this tensor any more. It is called once for each
  // chunk, in the order of the chunks, by one thread at a time.
  virtual void Done(uint64_t i) { (void)i; }
};

// Returns how many elements a chunk of a tensor holds. The last chunk may hold fewer.
uint32_t ElementsPerChunk(DType dtype);

}  // namespace varve::internal
