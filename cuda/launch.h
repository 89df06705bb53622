// SPDX-License-Identifier: Apache-2.0
//
// The kernels, as the host starts them: on the current device, which is that of the stream. Nothing
// waits. Pointers are to the device's memory and must stay until the stream has come past.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/digest.h"
#include "cuda/device_chunk.h"
#include "cuda/digest_keys.h"

namespace varve::gpu {

struct DigestJob {
  DeviceChunk chunk;
  uint64_t place = 0;  // of its digest
};

struct DigestBatch {
  const DigestJob* jobs;  // the largest first, or one that comes last holds all up
  uint32_t size;
  uint32_t* next;  // 0: the first job that nobody has taken
  Digest* digests;
};

struct CopyBatch {
  const DeviceChunk* chunks;
  uint32_t size;
  uint32_t* next;  // 0
};

// A warp for each chunk where there are many; where there are few, a block of warps for each, or
// most of the device would idle.
cudaError_t LaunchDigests(const DigestBatch& batch, const DigestKeys& keys, int processors,
                          cudaStream_t stream);
// Chunks should be short enough for each processor to get some.
cudaError_t LaunchCopies(const CopyBatch& batch, int processors, cudaStream_t stream);

}  // namespace varve::gpu
