// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/staging_check.h"

#include <algorithm>
#include <random>
#include <utility>

#include "store/save/chunk_source.h"
#include "store/shards/strides.h"

namespace varve::internal {

namespace {

uint64_t NumElements(const StateTensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t length : tensor.shape) elements *= static_cast<uint64_t>(length);
  return elements;
}

uint64_t NumChunks(const StateTensor& tensor) {
  const uint64_t per_chunk = ElementsPerChunk(tensor.dtype);
  return (NumElements(tensor) + per_chunk - 1) / per_chunk;
}

}  // namespace

StagingCheck::StagingCheck(std::shared_ptr<const SaveState> state, double share, uint64_t round)
    : state_(std::move(state)) {
  std::mt19937_64 random(round);
  for (size_t at = 0; at < state_->tensors->tensors.size(); ++at) {
    const StateTensor& tensor = state_->tensors->tensors[at];
    if (tensor.device != kHost || NumElements(tensor) == 0) continue;
    const uint64_t num_chunks = NumChunks(tensor);
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
  const uint64_t per_chunk = ElementsPerChunk(tensor.dtype);
  const uint64_t first = chunk.index * per_chunk;
  const uint64_t count = std::min(per_chunk, NumElements(tensor) - first);
  const auto bits = static_cast<uint64_t>(DTypeBits(tensor.dtype));
  const auto* data = static_cast<const std::byte*>(tensor.data);
  // A chunk begins at a whole byte, whatever the dtype.
  if (tensor.strides.empty()) {
    return ComputeDigest(kSeed, {data + first * bits / 8, (count * bits + 7) / 8});
  }
  std::vector<std::byte> gathered(count * bits / 8);
  Strides(tensor.shape, tensor.strides)
      .Gather(data, bits / 8, static_cast<int64_t>(first), gathered);
  return ComputeDigest(kSeed, gathered);
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
