// SPDX-License-Identifier: Apache-2.0
#include "cuda/chunk_digests.h"

#include <algorithm>
#include <string>
#include <utility>

namespace varve::internal::gpu {
namespace {

// Makes room for `wanted`, with `create`, and keeps what was there in `old`.
template <typename T, typename Create>
Status Grow(size_t wanted, size_t* max, std::unique_ptr<T>* current,
            std::vector<std::unique_ptr<T>>* old, const Create& create) {
  if (*current != nullptr && wanted <= *max) return Status::Ok();
  const size_t size = *current == nullptr ? wanted : std::max(wanted, 2 * *max);
  VARVE_ASSIGN_OR_RETURN(auto made, create(size));
  if (*current != nullptr) old->push_back(std::move(*current));
  *current = std::move(made);
  *max = size;
  return Status::Ok();
}

}  // namespace

Status ChunkDigests::Fit(std::span<const DeviceTensorSource::Chunk> chunks) {
  const auto small = static_cast<size_t>(
      std::ranges::count_if(chunks, [](const auto& chunk) { return IsSmall(chunk.bytes.size()); }));
  VARVE_RETURN_IF_ERROR(
      Grow(chunks.size(), &max_chunks_, &digester_, &old_digesters_,
           [this](size_t size) { return DeviceDigester::Create(device_, size); }));
  return Grow(small, &max_small_, &small_, &old_small_,
              [this](size_t size) { return SmallChunks::Create(device_, size); });
}

Status ChunkDigests::SetChunks(std::span<const DeviceTensorSource::Chunk> chunks) {
  std::vector<DeviceDigester::PlacedChunk> large;
  std::vector<std::span<const std::byte>> small;
  small_indices_.clear();
  num_chunks_ = chunks.size();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::span<const std::byte> bytes = chunks[i].bytes;
    if (IsSmall(bytes.size())) {
      small.push_back(bytes);
      small_indices_.push_back(i);
    } else {
      large.push_back({bytes.data(), bytes.size(), static_cast<uint32_t>(i)});
    }
  }
  if (digester_ == nullptr || chunks.size() > max_chunks_ || small.size() > max_small_) {
    small_indices_.clear();
    num_chunks_ = 0;
    return Status::FailedPrecondition(
        std::to_string(chunks.size()) + " chunks, " + std::to_string(small.size()) +
        " of them small, expected at most " + std::to_string(max_chunks_) + " and " +
        std::to_string(max_small_) + ", for which there is memory");
  }
  VARVE_RETURN_IF_ERROR(small_->SetChunks(small));
  return digester_->SetChunks(large, chunks.size(), part_bytes_);
}

Status ChunkDigests::Begin(uint64_t seed, cudaStream_t stream, const DeviceDigester::How& how) {
  seed_ = seed;
  num_small_done_ = 0;
  has_begun_ = false;
  VARVE_RETURN_IF_ERROR(small_->Begin(stream));
  VARVE_RETURN_IF_ERROR(digester_->Enqueue(seed, stream, how));
  has_begun_ = true;
  return Status::Ok();
}

Result<std::span<const Digest>> ChunkDigests::Take() {
  if (!has_begun_ || num_chunks_ == 0) return std::span<const Digest>();
  return TakePart(num_chunks_ - 1);
}

Result<std::span<const Digest>> ChunkDigests::TakePart(size_t have) {
  VARVE_ASSIGN_OR_RETURN(const std::span<Digest> digests, digester_->TakePart(have));
  VARVE_RETURN_IF_ERROR(small_->Await());
  for (; num_small_done_ < small_indices_.size(); ++num_small_done_) {
    const size_t i = small_indices_[num_small_done_];
    if (i >= digests.size()) break;
    digests[i] = ComputeDigest(seed_, (*small_)[num_small_done_]);
  }
  if (digests.size() == num_chunks_) has_begun_ = false;
  return std::span<const Digest>(digests);
}

std::span<const std::byte> ChunkDigests::small(size_t chunk) const {
  const auto found = std::ranges::lower_bound(small_indices_, chunk);
  return (*small_)[static_cast<size_t>(found - small_indices_.begin())];
}

}  // namespace varve::internal::gpu
