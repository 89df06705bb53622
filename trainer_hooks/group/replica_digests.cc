// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/replica_digests.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/bytes_of.h"
#include "store/shards/strides.h"
#include "trainer_hooks/save/tensor_places.h"

namespace varve::internal {

namespace {

// Any seed, the same on all ranks: these digests are compared and forgotten.
constexpr uint64_t kReplicasSeed = 0x7661727665;
// Elements that are digested at a time, whatever their type. They fill whole bytes, even if one
// element does not. They are few, because each thread has memory for so many elements with strides:
// 256 KiB of the largest.
constexpr uint64_t kChunkElements = uint64_t{32} << 10;

uint64_t ElementsOf(const StateTensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  return elements;
}

std::span<const std::byte> DenseChunk(const StateTensor& tensor, uint64_t chunk) {
  const auto* data = static_cast<const std::byte*>(tensor.data);
  const auto bits = static_cast<uint64_t>(DTypeBits(tensor.dtype));
  const uint64_t first = chunk * kChunkElements;
  const uint64_t count = std::min(kChunkElements, ElementsOf(tensor) - first);
  return {data + first * bits / 8, count * bits / 8};
}

uint64_t NumChunks(const StateTensor& tensor) {
  return (ElementsOf(tensor) + kChunkElements - 1) / kChunkElements;
}

}  // namespace

std::vector<DeviceTensorSource::Chunk> DeviceChunksOf(std::span<const StateTensor* const> tensors) {
  std::vector<DeviceTensorSource::Chunk> chunks;
  for (const StateTensor* const tensor : tensors) {
    for (uint64_t chunk = 0; chunk < NumChunks(*tensor); ++chunk) {
      chunks.push_back({tensor->device, DenseChunk(*tensor, chunk)});
    }
  }
  return chunks;
}

ReplicaDigests::ReplicaDigests(std::span<const StateTensor> tensors, DeviceTensorSource* devices,
                               int num_threads)
    : tensors_(tensors), digests_(tensors_.size()) {
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const auto n = static_cast<uint32_t>(NumChunks(tensors_[i]));
    digests_[i].resize(n);
    auto& chunks = tensors_[i].device == kHost ? chunks_ : device_chunks_;
    for (uint32_t chunk = 0; chunk < n; ++chunk) chunks.emplace_back(i, chunk);
  }
  const size_t useful = std::min(static_cast<size_t>(num_threads), chunks_.size());
  try {
    if (!device_chunks_.empty()) {
      device_status_ = Status::Unavailable("there is no thread to compare replicas on devices");
      threads_.emplace_back([this, devices] {
        try {
          device_status_ = DigestOnDevices(devices);
        } catch (const std::exception&) {  // as in Work
          is_out_of_memory_ = true;
        }
      });
    }
    for (size_t i = 0; i < useful; ++i) threads_.emplace_back([this] { Work(); });
  } catch (const std::exception&) {
    // No more threads are to be had: Finish does what is left.
  }
}

ReplicaDigests::~ReplicaDigests() { next_ = chunks_.size(); }

void ReplicaDigests::Work() {
  try {
    std::vector<std::byte> gathered;
    for (size_t i = next_++; i < chunks_.size(); i = next_++) {
      const auto [tensor, chunk] = chunks_[i];
      digests_[tensor][chunk] = DigestChunk(tensors_[tensor], chunk, &gathered);
    }
  } catch (const std::exception&) {  // of what runs here only memory can be missing
    is_out_of_memory_ = true;  // not the error itself: there may be no memory for that, either
  }
}

Status ReplicaDigests::DigestOnDevices(DeviceTensorSource* devices) {
  VARVE_ASSIGN_OR_RETURN(
      const Digest* const digests,
      devices->DigestNow(kReplicasSeed, DeviceChunksOf(TensorsOnDevices(tensors_))));
  for (size_t i = 0; i < device_chunks_.size(); ++i) {
    const auto& [tensor, chunk] = device_chunks_[i];
    digests_[tensor][chunk] = digests[i];
  }
  return Status::Ok();
}

Digest ReplicaDigests::DigestChunk(const StateTensor& tensor, uint64_t chunk,
                                   std::vector<std::byte>* gathered) const {
  if (IsDense(tensor.shape, tensor.strides)) {
    return ComputeDigest(kReplicasSeed, DenseChunk(tensor, chunk));
  }
  const uint64_t element_bytes = BytesOf(tensor.dtype, 1);
  const uint64_t first = chunk * kChunkElements;
  const uint64_t count = std::min(kChunkElements, ElementsOf(tensor) - first);
  gathered->resize(count * element_bytes);
  Strides(tensor.shape, tensor.strides)
      .Gather(static_cast<const std::byte*>(tensor.data), element_bytes,
              static_cast<int64_t>(first), *gathered);
  return ComputeDigest(kReplicasSeed, *gathered);
}

Result<std::vector<Digest>> ReplicaDigests::Finish() {
  Work();
  threads_.clear();
  if (is_out_of_memory_) {
    return Status::Unavailable("there is no memory to compare replicas: a thread needs " +
                               std::to_string(kChunkElements * 8 >> 10) + " KiB");
  }
  VARVE_RETURN_IF_ERROR(device_status_);
  std::vector<Digest> whole;
  for (const std::vector<Digest>& chunks : digests_) {
    whole.push_back(ComputeDigest(kReplicasSeed, std::as_bytes(std::span(chunks))));
  }
  return whole;
}

}  // namespace varve::internal
