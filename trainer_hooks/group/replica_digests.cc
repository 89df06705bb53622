// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/group/replica_digests.h"

#include <algorithm>
#include <exception>
#include <new>

#include "store/format/record.h"
#include "store/shards/strides.h"
#include "trainer_hooks/save/tensor_places.h"

namespace varve::internal {

namespace {

// Any seed, the same on all ranks: these digests are compared and forgotten.
constexpr uint64_t kReplicasSeed = 0x7661727665;
// Elements that are digested at a time, whatever their type. They fill whole bytes, even if one
// element does not. They are few, because each thread has memory for so many elements with strides:
// 256 KiB of the largest.
constexpr uint32_t kChunkElements = uint32_t{32} << 10;

ChunkGeometry GeometryOfReplica(const StateTensor& tensor) {
  return GeometryOf(tensor.dtype, tensor.shape, kChunkElements);
}

// `gathered` is not used if the tensor is dense.
std::span<const std::byte> BytesOfChunk(const StateTensor& tensor, uint64_t chunk,
                                        std::vector<std::byte>* gathered) {
  const ChunkGeometry geometry = GeometryOfReplica(tensor);
  return DenseBytes({.dtype = tensor.dtype,
                     .shape = tensor.shape,
                     .data = tensor.data,
                     .strides = tensor.strides},
                    geometry.ChunkOffset(chunk), geometry.ChunkBytes(chunk), gathered);
}

}  // namespace

std::vector<DeviceTensorSource::Chunk> DeviceChunksOf(std::span<const StateTensor* const> tensors) {
  std::vector<DeviceTensorSource::Chunk> chunks;
  for (const StateTensor* const tensor : tensors) {
    const uint64_t n = GeometryOfReplica(*tensor).NumChunks();
    for (uint64_t chunk = 0; chunk < n; ++chunk) {
      chunks.push_back({tensor->device, BytesOfChunk(*tensor, chunk, nullptr)});
    }
  }
  return chunks;
}

ReplicaDigests::ReplicaDigests(std::span<const StateTensor> tensors, DeviceTensorSource* devices,
                               int num_threads)
    : tensors_(tensors), digests_(tensors_.size()) {
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const auto n = static_cast<uint32_t>(GeometryOfReplica(tensors_[i]).NumChunks());
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
      digests_[tensor][chunk] =
          ComputeDigest(kReplicasSeed, BytesOfChunk(tensors_[tensor], chunk, &gathered));
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
