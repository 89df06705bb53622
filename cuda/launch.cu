// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/batch_kernel.cuh"
#include "cuda/launch.h"

namespace varve::internal::gpu {
namespace {

constexpr int kThreads = kWarpsPerBlock * kLanes;

// Two blocks a processor leave 128 registers a thread, of which 32 hold the loads under way. So a
// processor has 64 KiB in flight, twice what its share of the memory needs.
__global__ void __launch_bounds__(kThreads, 2)
    DigestKernel(const DigestBatch batch, const __grid_constant__ DigestKeys keys) {
  __shared__ SharedDigest<kSummingWarps> shared;
  DigestJobs(batch, keys, &shared);
}

constexpr int kWideThreads = kWarpsPerWideBlock * kLanes;

// Its only block on a processor has 64 KiB in flight, too.
__global__ void __launch_bounds__(kWideThreads, 1)
    WideDigestKernel(const DigestBatch batch, const __grid_constant__ DigestKeys keys) {
  __shared__ SharedDigest<kSummingWarpsOfWide> shared;
  DigestWithBlocks(batch, keys, &shared);
}

__global__ void __launch_bounds__(kThreads) CopyKernel(const CopyBatch batch) {
  __shared__ uint32_t job;
  CopyWithBlocks(batch, &job);
}

template <typename Kernel>
cudaError_t Load(Kernel* kernel, int threads, uint32_t* blocks) {
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  int found = 0;
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, threads, 0);
  }
  *blocks = static_cast<uint32_t>(std::max(found, 1));
  return error;
}

}  // namespace

cudaError_t LoadKernels(KernelShapes* shapes) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  shapes->processors = static_cast<uint32_t>(processors);
  uint32_t wide_blocks = 0;  // 1, as its launch bounds say
  if (error == cudaSuccess) error = Load(DigestKernel, kThreads, &shapes->digest_blocks);
  if (error == cudaSuccess) error = Load(WideDigestKernel, kWideThreads, &wide_blocks);
  if (error == cudaSuccess) error = Load(CopyKernel, kThreads, &shapes->copy_blocks);
  return error;
}

cudaError_t LaunchDigests(const DigestBatch& batch, const DigestKeys& keys, uint32_t blocks,
                          cudaStream_t stream) {
  const uint32_t grid = std::min(batch.size, blocks);
  if (batch.has_wide_blocks) {
    WideDigestKernel<<<grid, kWideThreads, 0, stream>>>(batch, keys);
  } else {
    DigestKernel<<<grid, kThreads, 0, stream>>>(batch, keys);
  }
  return cudaGetLastError();
}

cudaError_t LaunchCopies(const CopyBatch& batch, uint32_t blocks, cudaStream_t stream) {
  CopyKernel<<<std::min(batch.size, blocks), kThreads, 0, stream>>>(batch);
  return cudaGetLastError();
}

}  // namespace varve::internal::gpu
