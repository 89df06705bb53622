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

namespace varve::internal::gpu {

// Thread rule: one thread at a time. It is not movable, because enqueued work refers to it.
class DeviceDigester {
 public:
  // Allocates all the memory that it will need for batches of up to `max_chunks`: 48 bytes a chunk
  // on `device`, and as much on the host. kUnavailable: there is no such device, or not enough
  // memory.
  static Result<std::unique_ptr<DeviceDigester>> Create(int device, size_t max_chunks);
  ~DeviceDigester();
  DeviceDigester(const DeviceDigester&) = delete;
  DeviceDigester& operator=(const DeviceDigester&) = delete;

  // Enqueues a batch on `stream`, a stream of the device, and does not wait. The device reads the
  // chunks when the stream gets there. They must stay and not change until the stream is past that.
  // The previous batch must have been taken. kInvalidArgument: more than max_chunks, or a chunk
  // that is too short.
  Status Enqueue(uint64_t seed, std::span<const DeviceChunk> chunks, cudaStream_t stream);
  // Waits for the batch that was enqueued without an error, if there is one. digests[i] is the
  // digest of chunks[i], and equals ComputeDigest(seed, bytes). The digests are valid until the
  // next Enqueue.
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

}  // namespace varve::internal::gpu
