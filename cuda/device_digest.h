// SPDX-License-Identifier: Apache-2.0
//
// Digests of many chunks in device memory, by one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/digest.h"
#include "cuda/device_chunk.h"
#include "cuda/launch.h"
#include "cuda/resources.h"
#include "varve/result.h"

namespace varve::internal::gpu {

// Which chunks are digested is said once. Then each batch is of these chunks.
//
// Thread rule: one thread at a time. It is not movable, because enqueued work refers to it.
class DeviceDigester {
 public:
  // Allocates all the memory that it will need for up to `max_chunks`: 48 bytes a chunk on
  // `device`, and as much on the host. Loads the kernels. kUnavailable: there is no such device, or
  // not enough memory.
  static Result<std::unique_ptr<DeviceDigester>> Create(int device, size_t max_chunks);
  ~DeviceDigester();
  DeviceDigester(const DeviceDigester&) = delete;
  DeviceDigester& operator=(const DeviceDigester&) = delete;

  struct PlacedChunk {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
    uint32_t place = 0;  // of its digest, below max_chunks, and of no other's
  };
  // The next batches are of these chunks, in the order of their places. There are `places` places,
  // and some may have no chunk. The parts of a batch have about `part_bytes` each, which is not 0.
  // The previous batch must have been taken. kInvalidArgument: more than max_chunks, or a chunk
  // that is too short.
  Status SetChunks(std::span<const PlacedChunk> chunks, size_t places, uint64_t part_bytes);

  struct How {
    // Where each chunk is copied to, by place. It is a multiple of 16, or null = it is not copied.
    // Empty = none is.
    std::span<std::byte* const> copies{};
    uint32_t blocks_per_processor = 0;  // 0 = as many as there is room for
    // True: the digests of the first chunks can be taken while the device digests the next.
    bool in_parts = false;
  };
  // Enqueues a batch on `stream`, a stream of the device, and does not wait. All batches of the
  // same chunks go to one stream. The device reads the chunks when the stream gets there. They must
  // stay and not change until the stream is past that. The previous batch must have been taken.
  Status Enqueue(uint64_t seed, cudaStream_t stream, const How& how);
  // SetChunks, each at the place of its index and all in one part, and Enqueue.
  Status Enqueue(uint64_t seed, std::span<const DeviceChunk> chunks, cudaStream_t stream);
  // Waits for the batch that was enqueued without an error, if there is one. digests[i] is the
  // digest of the chunk at place i, and equals ComputeDigest(seed, bytes). Others may be anything.
  // The digests are valid, and the caller's to change, until the next Enqueue.
  Result<std::span<Digest>> Take() { return TakePart(places_ == 0 ? 0 : places_ - 1); }
  // The same for the first places, as many as the part with place `have` ends with. The batch is
  // taken when the last place is. Precondition: `have` is below the number of places, or 0.
  Result<std::span<Digest>> TakePart(size_t have);

 private:
  explicit DeviceDigester(int device) : device_(device) {}
  Status Init(size_t max_chunks);
  Status CheckTaken() const;
  Status CheckChunks(std::span<const PlacedChunk> chunks, size_t places) const;
  // Jobs and digests that are launched together.
  struct Part {
    uint32_t end_job = 0;
    size_t end_place = 0;
  };
  static constexpr size_t kMaxParts = 8;
  void ListParts(std::vector<PlacedChunk> chunks, uint64_t part_bytes);
  void ListRuns(std::span<const PlacedChunk> chunks);
  Status EnqueueBatch(uint64_t seed, cudaStream_t stream, const How& how);
  Status EnqueuePart(const Part& begin, const Part& end, const DigestKeys& keys, uint32_t blocks,
                     const How& how, cudaStream_t stream, size_t number);

  const int device_;
  KernelShapes shapes_;
  size_t places_ = 0;
  uint32_t num_jobs_ = 0;
  size_t num_runs_ = 0;
  std::vector<Part> parts_;      // of the chunks
  std::vector<Part> enqueued_;   // of the batch
  bool are_runs_there_ = false;  // on the device
  bool is_pending_ = false;
  PinnedBuffer<DigestRun> runs_;
  PinnedBuffer<std::byte*> copies_;
  PinnedBuffer<Digest> digests_;
  DeviceBuffer<DigestRun> device_runs_;
  DeviceBuffer<std::byte*> device_copies_;
  DeviceBuffer<Digest> device_digests_;
  DeviceBuffer<uint32_t> next_;
  std::array<Event, kMaxParts> done_;  // of each part
};

}  // namespace varve::internal::gpu
