// SPDX-License-Identifier: Apache-2.0
//
// Digests of chunks of any size in device memory: large ones are digested there, small ones, as of
// biases and norms, are brought to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/digest.h"
#include "cuda/device_chunk.h"
#include "cuda/device_digest.h"
#include "cuda/small_chunks.h"
#include "varve/device_tensor_source.h"
#include "varve/result.h"

namespace varve::gpu {

// Thread rule: one thread at a time.
class ChunkDigests {
 public:
  explicit ChunkDigests(int device) : device_(device) {}

  // Takes the memory for batches as this one. kUnavailable: there is not so much.
  Status Fit(std::span<const DeviceTensorSource::Chunk> chunks);

  // Enqueues a batch on `stream`, which is one of the device, as DeviceDigester does. The `copy` of
  // a small chunk is not looked at. The batch before must have been taken. kFailedPrecondition:
  // there is no memory for so many.
  Status Begin(uint64_t seed, std::span<const DeviceChunk> chunks, cudaStream_t stream);
  // Waits; in the order of the chunks, until the next Begin.
  Result<std::span<const Digest>> Take();
  // After Take, until the next Begin: a chunk that is small, on the host.
  std::span<const std::byte> small(size_t chunk) const { return (*small_)[places_[chunk]]; }

  static bool IsSmall(uint64_t bytes) { return bytes <= SmallChunks::kMaxBytes; }

 private:
  Status BeginBatch(uint64_t seed, std::span<const DeviceChunk> chunks, cudaStream_t stream);

  const int device_;
  size_t max_large_ = 0;
  size_t max_small_ = 0;
  std::unique_ptr<DeviceDigester> digester_;
  std::unique_ptr<SmallChunks> small_;
  uint64_t seed_ = 0;
  std::vector<bool> is_small_;  // of each chunk
  std::vector<size_t> places_;  // of each, among the large ones or the small ones
  std::vector<Digest> digests_;
};

}  // namespace varve::gpu
