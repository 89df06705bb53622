// SPDX-License-Identifier: Apache-2.0
//
// Digests of chunks of any size in device memory. Large chunks are digested on the device. Small
// ones, such as biases and norms, are copied to the host and digested there.
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

namespace varve::internal::gpu {

// Thread rule: one thread at a time.
class ChunkDigests {
 public:
  explicit ChunkDigests(int device) : device_(device) {}

  // Allocates the memory for batches like this one. kUnavailable: there is not enough.
  Status Fit(std::span<const DeviceTensorSource::Chunk> chunks);

  // Enqueues a batch on `stream`, a stream of the device, as DeviceDigester does. It ignores the
  // `copy` of a small chunk. The previous batch must have been taken. kFailedPrecondition: there is
  // no memory for so many chunks.
  Status Begin(uint64_t seed, std::span<const DeviceChunk> chunks, cudaStream_t stream);
  // Waits, then returns the digests in the order of the chunks. They are valid until the next
  // Begin.
  Result<std::span<const Digest>> Take();
  // Returns the bytes of a small chunk on the host. They are valid after Take, until the next
  // Begin.
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
  std::vector<size_t> places_;  // place of each chunk among the large ones or the small ones
  std::vector<Digest> digests_;
};

}  // namespace varve::internal::gpu
