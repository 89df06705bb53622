// SPDX-License-Identifier: Apache-2.0
//
// The kernels, as the host starts them: on the current device, which must be the device of the
// stream. No launch waits. Pointers are to the device's memory. They must stay valid until the
// stream is past the kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/digest.h"
#include "cuda/device_chunk.h"
#include "cuda/digest_keys.h"

namespace varve::internal::gpu {

inline constexpr uint32_t kWarpsPerBlock = 8;
// A wide block takes all registers of its processor, and has twice as many loads under way. It is
// for batches with no more jobs than there are processors, when they may take the whole device.
inline constexpr uint32_t kWarpsPerWideBlock = 16;

// Chunks of equal size that lie one behind the other, as a tensor's do. So do their digests.
struct DigestRun {
  const std::byte* data = nullptr;
  uint64_t chunk_bytes = 0;
  uint32_t first_job = 0;    // jobs of the runs before
  uint32_t first_place = 0;  // index of the first digest
};

// One job for each chunk. A batch has the jobs from `first` on, of all that the runs have.
struct DigestBatch {
  const DigestRun* runs;  // large chunks first, because a large one at the end would hold up all
  uint32_t num_runs;
  uint32_t first;
  uint32_t size;             // jobs
  uint32_t num_by_warps;     // the first of them. Each takes a warp, and the others a block
  bool has_wide_blocks;      // of kWarpsPerWideBlock warps. Then no job is for a warp
  uint32_t* next;            // two numbers that start at 0: jobs of warps and of blocks taken
  std::byte* const* copies;  // where each chunk is copied to, by place, or null. Null = none is
  Digest* digests;           // by place
};

struct CopyBatch {
  const DeviceChunk* chunks;
  uint32_t size;
  uint32_t* next;  // starts at 0
};

// What of the kernels fits on the current device.
struct KernelShapes {
  uint32_t processors = 0;
  uint32_t digest_blocks = 0;  // that a processor holds
  uint32_t copy_blocks = 0;
};
// Loads the kernels, which would else be loaded by their first launch.
cudaError_t LoadKernels(KernelShapes* shapes);

// Any number of blocks will do: each takes the next job when it is done with one.
cudaError_t LaunchDigests(const DigestBatch& batch, const DigestKeys& keys, uint32_t blocks,
                          cudaStream_t stream);
// Chunks should be short enough for each processor to get some.
cudaError_t LaunchCopies(const CopyBatch& batch, uint32_t blocks, cudaStream_t stream);

// How many jobs of a batch should take a warp each, with so many warps on the device. Each warp
// gets as many as the next. What is left would keep few warps busy, so each of these jobs takes a
// block, unless nearly all warps would get one.
inline uint32_t NumByWarps(uint32_t jobs, uint32_t warps) {
  const uint32_t left = jobs % warps;
  return uint64_t{left} * 8 >= uint64_t{warps} * 7 ? jobs : jobs - left;
}

}  // namespace varve::internal::gpu
