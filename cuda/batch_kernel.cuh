// SPDX-License-Identifier: Apache-2.0
//
// How the threads of a kernel work through a batch of chunks. Each takes the next job when it is
// done with one, so any number of thread blocks will do.
#pragma once

#include "cuda/digest_kernel.cuh"
#include "cuda/launch.h"

namespace varve::internal::gpu {

// The warps that sum, in a block that digests one chunk. Its last warp scrambles.
inline constexpr int kSummingWarps = kWarpsPerBlock - 1;
inline constexpr int kSummingWarpsOfWide = kWarpsPerWideBlock - 1;

// Takes a job for a warp. All its lanes get it.
__device__ inline uint32_t TakeJob(uint32_t* next) {
  uint32_t taken = 0;
  if (Lane() == 0) taken = atomicAdd(next, 1U);
  return static_cast<uint32_t>(__shfl_sync(kAllLanes, taken, 0));
}

// Takes a job for a block of threads. `shared` is the block's.
__device__ inline uint32_t TakeJobTogether(uint32_t* next, uint32_t* shared) {
  if (threadIdx.x == 0) *shared = atomicAdd(next, 1U);
  __syncthreads();
  const uint32_t taken = *shared;
  __syncthreads();
  return taken;
}

struct DigestJob {
  DeviceChunk chunk;
  uint32_t place = 0;  // index of its digest
};

// Finds job `in_batch` of the batch. Its run is the last one that starts no later.
__device__ inline DigestJob FindJob(const DigestBatch& batch, uint32_t in_batch) {
  const uint32_t i = batch.first + in_batch;
  uint32_t first = 0;
  for (uint32_t end = batch.num_runs; end - first > 1;) {
    const uint32_t middle = first + (end - first) / 2;
    if (batch.runs[middle].first_job <= i) {
      first = middle;
    } else {
      end = middle;
    }
  }
  const DigestRun run = batch.runs[first];
  const uint32_t in_run = i - run.first_job;
  const uint32_t place = run.first_place + in_run;
  std::byte* const copy = batch.copies == nullptr ? nullptr : batch.copies[place];
  return {{run.data + in_run * run.chunk_bytes, run.chunk_bytes, copy}, place};
}

__device__ inline void DigestWithWarps(const DigestBatch& batch, const DigestKeys& keys) {
  const uint32_t end = batch.num_by_warps;
  for (uint32_t i = TakeJob(batch.next); i < end; i = TakeJob(batch.next)) {
    const DigestJob job = FindJob(batch, i);
    const Digest digest = job.chunk.copy == nullptr ? DigestByWarp<false>(job.chunk, keys)
                                                    : DigestByWarp<true>(job.chunk, keys);
    if (Lane() == 0) batch.digests[job.place] = digest;
  }
}

// What a block of threads shares to make a digest.
template <int kWarps>
struct SharedDigest {
  SharedSums<kWarps> sums;
  uint32_t job;
};

// All jobs that no warp takes, by kWarps warps that sum, and one more.
template <int kWarps>
__device__ inline void DigestWithBlocks(const DigestBatch& batch, const DigestKeys& keys,
                                        SharedDigest<kWarps>* shared) {
  while (true) {
    const uint32_t i = batch.num_by_warps + TakeJobTogether(batch.next + 1, &shared->job);
    if (i >= batch.size) return;
    const DigestJob job = FindJob(batch, i);
    const Digest digest = job.chunk.copy == nullptr
                              ? DigestByBlock<false>(job.chunk, keys, &shared->sums)
                              : DigestByBlock<true>(job.chunk, keys, &shared->sums);
    if (threadIdx.x == kWarps * kLanes) batch.digests[job.place] = digest;
  }
}

// All jobs, by kWarpsPerBlock warps.
__device__ inline void DigestJobs(const DigestBatch& batch, const DigestKeys& keys,
                                  SharedDigest<kSummingWarps>* shared) {
  if (batch.num_by_warps > 0) DigestWithWarps(batch, keys);
  if (batch.num_by_warps < batch.size) DigestWithBlocks(batch, keys, shared);
}

__device__ inline void CopyWithBlocks(const CopyBatch& batch, uint32_t* shared_job) {
  while (true) {
    const uint32_t i = TakeJobTogether(batch.next, shared_job);
    if (i >= batch.size) return;
    const DeviceChunk chunk = batch.chunks[i];
    CopyRest(chunk, 0, threadIdx.x, kWarpsPerBlock * kLanes);
  }
}

}  // namespace varve::internal::gpu
