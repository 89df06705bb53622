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

// Memory grows to the double of what there was. The old memory is kept until the end, because to
// free memory of a device waits for the trainer's work there.
//
// Thread rule: one thread at a time.
class ChunkDigests {
 public:
  // `part_bytes`: of a part of a batch, about.
  ChunkDigests(int device, uint64_t part_bytes) : device_(device), part_bytes_(part_bytes) {}

  // Allocates the memory for batches of these chunks. kUnavailable: there is not enough.
  Status Fit(std::span<const DeviceTensorSource::Chunk> chunks);
  // The next batches are of these chunks. The previous batch must have been taken.
  // kFailedPrecondition: Fit has allocated no memory for so many.
  Status SetChunks(std::span<const DeviceTensorSource::Chunk> chunks);

  // Enqueues a batch on `stream`, a stream of the device, as DeviceDigester does. `how.copies` are
  // by index of the chunk, and null for small ones. The previous batch must have been taken.
  Status Begin(uint64_t seed, cudaStream_t stream, const DeviceDigester::How& how);
  // Waits, then returns the digests in the order of the chunks. They are valid until the next
  // Begin. Empty: no batch has begun.
  Result<std::span<const Digest>> Take();
  // The same for the first chunks, more than `have`, which is fewer than there are.
  Result<std::span<const Digest>> TakePart(size_t have);
  // Returns the bytes of a small chunk on the host. They are valid when its digest was taken, until
  // the next Begin.
  std::span<const std::byte> small(size_t chunk) const;

  static bool IsSmall(uint64_t bytes) { return bytes <= SmallChunks::kMaxBytes; }

 private:
  const int device_;
  const uint64_t part_bytes_;
  size_t max_chunks_ = 0;  // of digester_
  size_t max_small_ = 0;   // of small_
  std::unique_ptr<DeviceDigester> digester_;
  std::unique_ptr<SmallChunks> small_;
  std::vector<std::unique_ptr<DeviceDigester>> old_digesters_;
  std::vector<std::unique_ptr<SmallChunks>> old_small_;
  std::vector<size_t> small_indices_;  // of the small chunks, rising
  size_t num_chunks_ = 0;
  size_t num_small_done_ = 0;  // small chunks of the batch that are digested
  bool has_begun_ = false;     // a batch that is not taken
  uint64_t seed_ = 0;          // of the batch
};

}  // namespace varve::internal::gpu
