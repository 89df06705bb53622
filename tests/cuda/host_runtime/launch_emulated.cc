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

#include <cstring>
#include <span>

#include "cuda/launch.h"
#include "tests/cuda/host_runtime/host_runtime.h"

namespace varve::internal::gpu {
namespace {

using testing::Kernels;
using testing::MayTouch;

// A device would fault.
bool MayRun(const DeviceChunk& chunk) {
  if (!MayTouch(chunk.data, chunk.bytes)) return false;
  if (chunk.copy == nullptr) return true;
  const bool is_aligned = reinterpret_cast<uintptr_t>(chunk.copy) % 16 == 0;
  return MayTouch(is_aligned ? chunk.copy : nullptr, chunk.bytes);
}
bool MayRun(const DigestBatch& batch) {
  if (!MayTouch(batch.jobs, batch.size * sizeof(DigestJob))) return false;
  for (const DigestJob& job : std::span(batch.jobs, batch.size)) {
    if (!MayRun(job.chunk) || !MayTouch(batch.digests + job.place, sizeof(Digest))) return false;
  }
  return MayTouch(batch.next, sizeof(uint32_t));
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
  for (uint32_t i = (*batch.next)++; i < batch.size; i = (*batch.next)++) {
    const DigestJob& job = batch.jobs[i];
    const DeviceChunk& chunk = job.chunk;
    testing::runtime::SeeRead(chunk.data, chunk.bytes);
    batch.digests[job.place] = ComputeDigest(seed, {chunk.data, chunk.bytes});
    if (chunk.copy != nullptr) std::memcpy(chunk.copy, chunk.data, chunk.bytes);
  }
}

void ReferToCopies(const CopyBatch& batch) {
  for (uint32_t i = (*batch.next)++; i < batch.size; i = (*batch.next)++) {
    const DeviceChunk& chunk = batch.chunks[i];
    std::memcpy(chunk.copy, chunk.data, chunk.bytes);
  }
}

#ifdef VARVE_TSAN

void RunDigests(const DigestBatch& batch, const DigestKeys& keys, int /*processors*/) {
  ReferToDigests(batch, keys);
}
void RunCopies(const CopyBatch& batch) { ReferToCopies(batch); }

#else

using testing::EmulatedBlock;

constexpr int kBlocksPerProcessor = 3;  // as in launch.cu
constexpr int kBlocks = 2;              // of a grid, one after the other

void RunDigests(const DigestBatch& batch, const DigestKeys& keys, int processors) {
  if (testing::UsedKernels() == Kernels::kReference) return ReferToDigests(batch, keys);
  const bool are_many =
      batch.size >= static_cast<uint32_t>(processors * kBlocksPerProcessor * kWarpsPerBlock);
  SharedDigest shared;
  for (int i = 0; i < kBlocks; ++i) {
    if (are_many) {
      EmulatedBlock::Run(kWarpsPerBlock * kLanes, [&] { DigestWithWarps(batch, keys); });
    } else {
      EmulatedBlock::Run((kSummingWarps + 1) * kLanes,
                         [&] { DigestWithBlocks(batch, keys, &shared); });
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

cudaError_t LaunchDigests(const DigestBatch& batch, const DigestKeys& keys, int processors,
                          cudaStream_t stream) {
  return testing::Launch("LaunchDigests", stream, [=] {
    if (MayRun(batch)) RunDigests(batch, keys, processors);
  });
}

cudaError_t LaunchCopies(const CopyBatch& batch, int /*processors*/, cudaStream_t stream) {
  return testing::Launch("LaunchCopies", stream, [=] {
    if (MayRun(batch)) RunCopies(batch);
  });
}

}  // namespace varve::internal::gpu
