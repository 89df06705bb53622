// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/batch_kernel.cuh"
#include "cuda/launch.h"

namespace varve::internal::gpu {
namespace {

constexpr int kBlocksPerProcessor = 3;  // all kernels fit so often

__global__ void __launch_bounds__(kWarpsPerBlock* kLanes, kBlocksPerProcessor)
    DigestWithWarpsKernel(const DigestBatch batch, const __grid_constant__ DigestKeys keys) {
  DigestWithWarps(batch, keys);
}

__global__ void __launch_bounds__((kSummingWarps + 1) * kLanes, kBlocksPerProcessor)
    DigestWithBlocksKernel(const DigestBatch batch, const __grid_constant__ DigestKeys keys) {
  __shared__ SharedDigest shared;
  DigestWithBlocks(batch, keys, &shared);
}

__global__ void __launch_bounds__(kWarpsPerBlock* kLanes) CopyKernel(const CopyBatch batch) {
  __shared__ uint32_t job;
  CopyWithBlocks(batch, &job);
}

}  // namespace

cudaError_t LaunchDigests(const DigestBatch& batch, const DigestKeys& keys, int processors,
                          cudaStream_t stream) {
  const auto resident = static_cast<uint32_t>(processors * kBlocksPerProcessor);
  // There are enough chunks that each warp the device can hold gets at least one.
  if (batch.size >= resident * kWarpsPerBlock) {
    DigestWithWarpsKernel<<<resident, kWarpsPerBlock * kLanes, 0, stream>>>(batch, keys);
  } else {
    DigestWithBlocksKernel<<<std::min(batch.size, resident), (kSummingWarps + 1) * kLanes, 0,
                             stream>>>(batch, keys);
  }
  return cudaGetLastError();
}

cudaError_t LaunchCopies(const CopyBatch& batch, int processors, cudaStream_t stream) {
  constexpr uint32_t kPerProcessor = 8;  // 2048 threads, as many as there may be
  const uint32_t blocks = std::min(batch.size, static_cast<uint32_t>(processors) * kPerProcessor);
  CopyKernel<<<blocks, kWarpsPerBlock * kLanes, 0, stream>>>(batch);
  return cudaGetLastError();
}

}  // namespace varve::internal::gpu
