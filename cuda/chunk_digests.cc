// SPDX-License-Identifier: Apache-2.0
#include "cuda/chunk_digests.h"

#include <algorithm>
#include <string>

namespace varve::internal::gpu {

Status ChunkDigests::Fit(std::span<const DeviceTensorSource::Chunk> chunks) {
  const auto small = static_cast<size_t>(
      std::ranges::count_if(chunks, [](const auto& chunk) { return IsSmall(chunk.bytes.size()); }));
  const size_t large = chunks.size() - small;
  if (digester_ == nullptr || large > max_large_) {
    VARVE_ASSIGN_OR_RETURN(digester_, DeviceDigester::Create(device_, large));
    max_large_ = large;
  }
  if (small_ == nullptr || small > max_small_) {
    VARVE_ASSIGN_OR_RETURN(small_, SmallChunks::Create(device_, small));
    max_small_ = small;
  }
  return Status::Ok();
}

Status ChunkDigests::Begin(uint64_t seed, std::span<const DeviceChunk> chunks,
                           cudaStream_t stream) {
  const Status begun = BeginBatch(seed, chunks, stream);
  if (!begun.ok()) places_.clear();  // there is nothing to take
  return begun;
}

Status ChunkDigests::BeginBatch(uint64_t seed, std::span<const DeviceChunk> chunks,
                                cudaStream_t stream) {
  std::vector<DeviceChunk> large;
  std::vector<std::span<const std::byte>> small;
  seed_ = seed;
  is_small_.clear();
  places_.clear();
  for (const DeviceChunk& chunk : chunks) {
    is_small_.push_back(IsSmall(chunk.bytes));
    places_.push_back(is_small_.back() ? small.size() : large.size());
    if (is_small_.back()) {
      small.emplace_back(chunk.data, chunk.bytes);
    } else {
      large.push_back(chunk);
    }
  }
  if (large.size() > max_large_ || small.size() > max_small_) {
    return Status::FailedPrecondition(
        std::to_string(large.size()) + " large and " + std::to_string(small.size()) +
        " small chunks, expected at most " + std::to_string(max_large_) + " and " +
        std::to_string(max_small_) + ", for which there is memory");
  }
  if (!small.empty()) VARVE_RETURN_IF_ERROR(small_->Begin(small, stream));
  return large.empty() ? Status::Ok() : digester_->Enqueue(seed, large, stream);
}

Result<std::span<const Digest>> ChunkDigests::Take() {
  std::span<const Digest> large;
  if (digester_ != nullptr) {
    VARVE_ASSIGN_OR_RETURN(large, digester_->Take());
  }
  if (small_ != nullptr) VARVE_RETURN_IF_ERROR(small_->Await());
  digests_.resize(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    digests_[i] = is_small_[i] ? ComputeDigest(seed_, small(i)) : large[places_[i]];
  }
  return std::span<const Digest>(digests_);
}

}  // namespace varve::internal::gpu
