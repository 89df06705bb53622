// SPDX-License-Identifier: Apache-2.0
//
// The kernels, as the host starts them: on the current device, which must be the device of the
// stream. No call waits. Pointers are to the device's memory. They must stay valid until the stream
// is past the kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/digest.h"
#include "cuda/device_chunk.h"
#include "cuda/digest_keys.h"

namespace varve::internal::gpu {

struct DigestJob {
  DeviceChunk chunk;
  uint64_t place = 0;  // index of its digest
};

struct DigestBatch {
  const DigestJob* jobs;  // the largest first, because a large one at the end would hold up all
  uint32_t size;
  uint32_t* next;  // starts at 0: the first job that nobody has taken
  Digest* digests;
};

struct CopyBatch {
  const DeviceChunk* chunks;
  uint32_t size;
  uint32_t* next;  // starts at 0
};

// Many chunks get a warp each. Few chunks get a block of warps each, because otherwise most of the
// device would idle.
cudaError_t LaunchDigests(const DigestBatch& batch, const DigestKeys& keys, int processors,
                          cudaStream_t stream);
// Chunks should be short enough for each processor to get some.
cudaError_t LaunchCopies(const CopyBatch& batch, int processors, cudaStream_t stream);

}  // namespace varve::internal::gpu
