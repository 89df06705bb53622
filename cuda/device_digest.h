// SPDX-License-Identifier: Apache-2.0
//
// Digests of many chunks in device memory, by one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/digest.h"
#include "cuda/device_chunk.h"
#include "cuda/launch.h"
#include "cuda/resources.h"
#include "varve/result.h"

namespace varve::gpu {

// Thread rule: one thread at a time. Not movable: what is enqueued refers to it.
class DeviceDigester {
 public:
  // Takes all the memory that it will need, for batches of up to `max_chunks`: 48 bytes a chunk on
  // `device`, and as much of the host's. kUnavailable: there is no such device, or not the memory.
  static Result<std::unique_ptr<DeviceDigester>> Create(int device, size_t max_chunks);
  ~DeviceDigester();
  DeviceDigester(const DeviceDigester&) = delete;
  DeviceDigester& operator=(const DeviceDigester&) = delete;

  // Enqueues a batch on `stream`, which is one of the device; nothing waits. The chunks are read
  // when the stream comes to it, and must be there and unchanged until it has come past. The batch
  // before must have been taken. kInvalidArgument: more than max_chunks, or one that is too short.
  Status Enqueue(uint64_t seed, std::span<const DeviceChunk> chunks, cudaStream_t stream);
  // Waits for the batch that was enqueued without an error, if there is one; digests[i] is that of
  // chunks[i], equal to ComputeDigest(seed, bytes), until the next Enqueue.
  Result<std::span<const Digest>> Take();

 private:
  explicit DeviceDigester(int device) : device_(device) {}
  Status Init(size_t max_chunks);
  Status CheckBatch(std::span<const DeviceChunk> chunks) const;
  Status EnqueueBatch(uint64_t seed, cudaStream_t stream);

  const int device_;
  int processors_ = 0;
  size_t size_ = 0;  // of the batch
  bool is_pending_ = false;
  PinnedBuffer<DigestJob> jobs_;
  PinnedBuffer<Digest> digests_;
  DeviceBuffer<DigestJob> device_jobs_;
  DeviceBuffer<Digest> device_digests_;
  DeviceBuffer<uint32_t> next_;
  Event done_;
};

}  // namespace varve::gpu
