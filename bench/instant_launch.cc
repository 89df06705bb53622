// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/launch.h for instant_cuda.h.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/digest.h"
#include "bench/instant_cuda.h"
#include "cuda/launch.h"

namespace varve::internal::gpu {

namespace {

uint64_t SeedOf(const DigestKeys& keys) { return keys.secret[0] - MakeDigestKeys(0).secret[0]; }

const Digest& DigestOfZeros(uint64_t seed, uint64_t bytes) {
  static std::map<std::pair<uint64_t, uint64_t>, Digest> known;
  const auto [it, is_new] = known.try_emplace({seed, bytes});
  if (is_new) it->second = ComputeDigest(seed, std::vector<std::byte>(bytes));
  return it->second;
}

}  // namespace

cudaError_t LoadKernels(KernelShapes* shapes) {
  *shapes = {.processors = 132, .digest_blocks = 3, .copy_blocks = 8};
  return cudaSuccess;
}

cudaError_t LaunchDigests(const DigestBatch& batch, const DigestKeys& keys, uint32_t,
                          cudaStream_t) {
  bench::instant::Marks& marks = bench::instant::marks();
  marks.launched = bench::instant::Clock::now();
  const uint64_t seed = SeedOf(keys);
  const uint32_t last = batch.first + batch.size;
  for (uint32_t run = 0; run < batch.num_runs; ++run) {
    const DigestRun& of = batch.runs[run];
    const uint32_t end = run + 1 < batch.num_runs ? batch.runs[run + 1].first_job : last;
    const Digest zeros = DigestOfZeros(seed, of.chunk_bytes);
    for (uint32_t job = std::max(of.first_job, batch.first); job < std::min(end, last); ++job) {
      const uint32_t i = job - of.first_job;
      const std::byte* const chunk = of.data + i * of.chunk_bytes;
      const bool is_zero = !bench::instant::MayBeChanged(chunk);
      batch.digests[of.first_place + i] =
          is_zero ? zeros : ComputeDigest(seed, {chunk, of.chunk_bytes});
    }
  }
  marks.digested = bench::instant::Clock::now();
  marks.is_awaited = false;
  return cudaSuccess;
}

cudaError_t LaunchCopies(const CopyBatch& batch, uint32_t, cudaStream_t) {
  for (uint32_t i = 0; i < batch.size; ++i) {
    std::memcpy(batch.chunks[i].copy, batch.chunks[i].data, batch.chunks[i].bytes);
  }
  return cudaSuccess;
}

}  // namespace varve::internal::gpu
