// SPDX-License-Identifier: Apache-2.0
//
// Digests of many chunks in device memory, by one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "codec/digest.h"
#include "cuda/device_chunk.h"
#include "varve/result.h"

namespace varve::gpu {

// Thread rule: one thread at a time. Not movable: what is enqueued refers to it.
class DeviceDigester {
 public:
  // Takes all the memory that it will need, for batches of up to `max_chunks`: 40 bytes a chunk on
  // `device`, and as much of the host's. kUnavailable: there is no such device, or not the memory.
  static Result<std::unique_ptr<DeviceDigester>> Create(int device, uint64_t seed,
                                                        size_t max_chunks);
  virtual ~DeviceDigester() = default;
  DeviceDigester(const DeviceDigester&) = delete;
  DeviceDigester& operator=(const DeviceDigester&) = delete;

  // Enqueues a batch on `stream`, which is one of the device; nothing waits. The chunks are read
  // when the stream comes to it, and must be there and unchanged until it has come past. The batch
  // before must have been taken. kInvalidArgument: more than max_chunks, or one that is too short.
  virtual Status Enqueue(std::span<const DeviceChunk> chunks, cudaStream_t stream) = 0;
  // Waits for the batch that was enqueued without an error, if there is one; digests[i] is that of
  // chunks[i], equal to ComputeDigest(seed, bytes), until the next Enqueue.
  virtual Result<std::span<const Digest>> Take() = 0;

 protected:
  DeviceDigester() = default;
};

}  // namespace varve::gpu
