// SPDX-License-Identifier: Apache-2.0
//
// The small chunks of a device, such as biases and norms. They are gathered, copied to the host at
// once, and digested there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/device_copy.h"
#include "cuda/resources.h"
#include "varve/result.h"

namespace varve::internal::gpu {

// Thread rule: one thread at a time. It is not movable, because enqueued work refers to it.
class SmallChunks {
 public:
  static constexpr uint64_t kMaxBytes = 4096;  // of a chunk

  // Allocates all the memory that it will need for up to `max_chunks`.
  static Result<std::unique_ptr<SmallChunks>> Create(int device, size_t max_chunks);
  ~SmallChunks();
  SmallChunks(const SmallChunks&) = delete;
  SmallChunks& operator=(const SmallChunks&) = delete;

  // Says which chunks the next calls read. It waits for the previous read. Precondition: there are
  // at most max_chunks, and none is larger than kMaxBytes.
  Status SetChunks(std::span<const std::span<const std::byte>> chunks);
  // Enqueues the reads of the chunks on `stream`, which is the same for all reads of these chunks.
  Status Begin(cudaStream_t stream);
  // Waits until they have arrived.
  Status Await();
  // Returns chunk `i`. It is valid after Await, until the next Begin or SetChunks.
  std::span<const std::byte> operator[](size_t i) const { return chunks_[i]; }

 private:
  SmallChunks() = default;

  std::unique_ptr<DeviceCopier> copier_;
  DeviceBuffer<std::byte> gathered_;
  PinnedBuffer<std::byte> host_;
  std::vector<std::span<const std::byte>> chunks_;  // in host_
  uint64_t bytes_ = 0;                              // of host_ that they take
  Event done_;
};

}  // namespace varve::internal::gpu
