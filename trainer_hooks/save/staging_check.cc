// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/staging_check.h"

#include <random>
#include <utility>

#include "store/format/record.h"
#include "store/save/chunk_source.h"
#include "store/shards/strides.h"

namespace varve::internal {

namespace {

ChunkGeometry GeometryOfState(const StateTensor& tensor) {
  return GeometryOf(tensor.dtype, tensor.shape, ElementsPerChunk(tensor.dtype));
}

}  // namespace

StagingCheck::StagingCheck(std::shared_ptr<const SaveState> state, double share, uint64_t round)
    : state_(std::move(state)) {
  std::mt19937_64 random(round);
  for (size_t at = 0; at < state_->tensors->tensors.size(); ++at) {
    const StateTensor& tensor = state_->tensors->tensors[at];
    const uint64_t num_chunks = GeometryOfState(tensor).NumChunks();
    if (tensor.device != kHost || num_chunks == 0) continue;
    const uint64_t always = random() % num_chunks;
    for (uint64_t i = 0; i < num_chunks; ++i) {
      // Below 2^53 a double is exact, and 1 takes all.
      const double lot =
          static_cast<double>(random() >> 11) / static_cast<double>(uint64_t{1} << 53);
      if (i != always && lot >= share) continue;
      chunks_.push_back({at, i, {}});
    }
  }
  for (Chunk& chunk : chunks_) chunk.digest = DigestOf(chunk);
}

Digest StagingCheck::DigestOf(const Chunk& chunk) const {
  constexpr uint64_t kSeed = 0;  // these are compared with one another alone
  const StateTensor& tensor = state_->tensors->tensors[chunk.tensor];
  const ChunkGeometry geometry = GeometryOfState(tensor);
  std::vector<std::byte> gathered;
  const auto bytes =
      DenseBytes({.dtype = tensor.dtype,
                  .shape = tensor.shape,
                  .data = tensor.data,
                  .strides = tensor.strides},
                 geometry.ChunkOffset(chunk.index), geometry.ChunkBytes(chunk.index), &gathered);
  return ComputeDigest(kSeed, bytes);
}

Status StagingCheck::Compare() const {
  std::vector<size_t> changed;  // tensors
  for (const Chunk& chunk : chunks_) {
    if (!changed.empty() && changed.back() == chunk.tensor) continue;
    if (DigestOf(chunk) != chunk.digest) changed.push_back(chunk.tensor);
  }
  if (changed.empty()) return Status::Ok();
  std::string message = "tensor " + state_->tensors->tensors[changed[0]].name;
  if (changed.size() > 1) message += " and " + std::to_string(changed.size() - 1) + " more";
  message +=
      " changed between BeginSave and AwaitStaged: call AwaitStaged, which is BeforeOptimizerStep "
      "of TrainerHooks, before what changes tensors of the state, not after it";
  return Status::FailedPrecondition(message);
}

}  // namespace varve::internal
