// SPDX-License-Identifier: Apache-2.0
//
// Copies of many chunks from one place of a device's memory to another, by one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cuda/device_chunk.h"
#include "cuda/launch.h"
#include "cuda/resources.h"
#include "varve/result.h"

namespace varve::internal::gpu {

// Thread rule: one thread at a time. It is not movable, because enqueued work refers to it.
class DeviceCopier {
 public:
  // Allocates all the memory that it will need, for batches of up to `max_chunks` and `max_bytes`.
  // kUnavailable: there is no such device, or not enough memory.
  static Result<std::unique_ptr<DeviceCopier>> Create(int device, size_t max_chunks,
                                                      uint64_t max_bytes);
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  // Says which chunks the next batches copy. All have a `copy`. It waits for the previous batch.
  // kInvalidArgument: they are more than there is memory for.
  Status SetChunks(std::span<const DeviceChunk> chunks);
  // Enqueues a batch on `stream`, a stream of the device. It waits for the previous batch. All
  // batches of the same chunks go to one stream.
  Status Enqueue(cudaStream_t stream);
  Status Enqueue(std::span<const DeviceChunk> chunks, cudaStream_t stream) {
    VARVE_RETURN_IF_ERROR(SetChunks(chunks));
    return Enqueue(stream);
  }

 private:
  DeviceCopier(int device, size_t max_pieces) : device_(device), max_pieces_(max_pieces) {}
  Status Init();

  const int device_;
  const size_t max_pieces_;
  KernelShapes shapes_;
  size_t num_pieces_ = 0;
  bool are_pieces_there_ = false;  // on the device
  PinnedBuffer<DeviceChunk> pieces_;
  DeviceBuffer<DeviceChunk> device_pieces_;
  DeviceBuffer<uint32_t> next_;
  Event done_;
};

}  // namespace varve::internal::gpu
