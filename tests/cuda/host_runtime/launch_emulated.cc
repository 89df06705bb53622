// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda/launch.h as work of a stream of the host's runtime. They run thread by
// thread, as emulation.h does it, or the codec and memcpy compute the same.
#include "tests/cuda/host_runtime/order.h"
#ifndef VARVE_TSAN  // which knows no coroutines
// clang-format off
#include "tests/cuda/emulation.h"  // before the kernels
#include "cuda/batch_kernel.cuh"
// clang-format on
#endif

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "cuda/launch.h"
#include "tests/cuda/host_runtime/host_runtime.h"

namespace varve::internal::gpu {
namespace {

using testing::Kernels;
using testing::MayTouch;

std::atomic<uint32_t> last_digest_blocks = 0;
std::atomic<bool> last_digest_was_wide = false;

// A device would fault.
bool MayRun(const DeviceChunk& chunk) {
  if (!MayTouch(chunk.data, chunk.bytes)) return false;
  if (chunk.copy == nullptr) return true;
  const bool is_aligned = reinterpret_cast<uintptr_t>(chunk.copy) % 16 == 0;
  return MayTouch(is_aligned ? chunk.copy : nullptr, chunk.bytes);
}
// Calls `visit` with each chunk and its place, until that returns false.
template <typename Visit>
bool ForEachJob(const DigestBatch& batch, const Visit& visit) {
  const uint32_t last = batch.first + batch.size;
  for (uint32_t run = 0; run < batch.num_runs; ++run) {
    const DigestRun& of = batch.runs[run];
    const uint32_t end = run + 1 < batch.num_runs ? batch.runs[run + 1].first_job : last;
    for (uint32_t job = std::max(of.first_job, batch.first); job < std::min(end, last); ++job) {
      const uint32_t i = job - of.first_job;
      const uint32_t place = of.first_place + i;
      std::byte* const copy = batch.copies == nullptr ? nullptr : batch.copies[place];
      if (!visit(DeviceChunk{of.data + i * of.chunk_bytes, of.chunk_bytes, copy}, place)) {
        return false;
      }
    }
  }
  return true;
}

bool MayRun(const DigestBatch& batch) {
  if (!MayTouch(batch.runs, batch.num_runs * sizeof(DigestRun))) return false;
  const bool may_run = ForEachJob(batch, [&](const DeviceChunk& chunk, uint32_t place) {
    const bool may_look = batch.copies == nullptr || MayTouch(batch.copies + place, sizeof(void*));
    return may_look && MayRun(chunk) && MayTouch(batch.digests + place, sizeof(Digest));
  });
  return may_run && MayTouch(batch.next, 2 * sizeof(uint32_t));
}
bool MayRun(const CopyBatch& batch) {
  if (!MayTouch(batch.chunks, batch.size * sizeof(DeviceChunk))) return false;
  for (const DeviceChunk& chunk : std::span(batch.chunks, batch.size)) {
    if (!MayTouch(chunk.copy, 1) || !MayRun(chunk)) return false;
  }
  return MayTouch(batch.next, sizeof(uint32_t));
}

// MakeDigestKeys is plain in the seed.
uint64_t SeedOf(const DigestKeys& keys) { return keys.secret[0] - MakeDigestKeys(0).secret[0]; }

void ReferToDigests(const DigestBatch& batch, const DigestKeys& keys) {
  const uint64_t seed = SeedOf(keys);
  ForEachJob(batch, [&](const DeviceChunk& chunk, uint32_t place) {
    testing::runtime::SeeRead(chunk.data, chunk.bytes);
    batch.digests[place] = ComputeDigest(seed, {chunk.data, chunk.bytes});
    if (chunk.copy != nullptr) std::memcpy(chunk.copy, chunk.data, chunk.bytes);
    return true;
  });
}

void ReferToCopies(const CopyBatch& batch) {
  for (uint32_t i = (*batch.next)++; i < batch.size; i = (*batch.next)++) {
    const DeviceChunk& chunk = batch.chunks[i];
    std::memcpy(chunk.copy, chunk.data, chunk.bytes);
  }
}

#ifdef VARVE_TSAN

void RunDigests(const DigestBatch& batch, const DigestKeys& keys) { ReferToDigests(batch, keys); }
void RunCopies(const CopyBatch& batch) { ReferToCopies(batch); }

#else

using testing::EmulatedBlock;

constexpr int kBlocks = 2;  // of a grid, one after the other

void RunDigests(const DigestBatch& batch, const DigestKeys& keys) {
  if (testing::UsedKernels() == Kernels::kReference) return ReferToDigests(batch, keys);
  SharedDigest<kSummingWarps> shared;
  SharedDigest<kSummingWarpsOfWide> shared_by_wide;
  for (int i = 0; i < kBlocks; ++i) {
    if (batch.has_wide_blocks) {
      EmulatedBlock::Run(kWarpsPerWideBlock * kLanes,
                         [&] { DigestWithBlocks(batch, keys, &shared_by_wide); });
    } else {
      EmulatedBlock::Run(kWarpsPerBlock * kLanes, [&] { DigestJobs(batch, keys, &shared); });
    }
  }
}

void RunCopies(const CopyBatch& batch) {
  if (testing::UsedKernels() == Kernels::kReference) return ReferToCopies(batch);
  uint32_t shared = 0;
  for (int i = 0; i < kBlocks; ++i) {
    EmulatedBlock::Run(kWarpsPerBlock * kLanes, [&] { CopyWithBlocks(batch, &shared); });
  }
}

#endif

}  // namespace
}  // namespace varve::internal::gpu

uint32_t varve::internal::testing::LastDigestBlocks() {
  return varve::internal::gpu::last_digest_blocks;
}
bool varve::internal::testing::LastDigestWasWide() {
  return varve::internal::gpu::last_digest_was_wide;
}

namespace varve::internal::gpu {

cudaError_t LoadKernels(KernelShapes* shapes) {
  *shapes = {.processors = testing::kProcessors, .digest_blocks = 3, .copy_blocks = 8};
  return cudaSuccess;
}

cudaError_t LaunchDigests(const DigestBatch& batch, const DigestKeys& keys, uint32_t blocks,
                          cudaStream_t stream) {
  last_digest_blocks = blocks;
  last_digest_was_wide = batch.has_wide_blocks;
  return testing::Launch("LaunchDigests", stream, [=] {
    if (MayRun(batch)) RunDigests(batch, keys);
  });
}

cudaError_t LaunchCopies(const CopyBatch& batch, uint32_t /*blocks*/, cudaStream_t stream) {
  return testing::Launch("LaunchCopies", stream, [=] {
    if (MayRun(batch)) RunCopies(batch);
  });
}

}  // namespace varve::internal::gpu
