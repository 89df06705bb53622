// SPDX-License-Identifier: Apache-2.0
//
// The digest kernels on the CPU: bit for bit the digests of the codec, and the copies, whatever the
// size and alignment.
// clang-format off
#include "tests/cuda/emulation.h"  // before the kernels
#include "cuda/digest_kernel.cuh"
// clang-format on

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cuda/kernel_bytes.h"

namespace varve::internal::gpu {
namespace {

using testing::EmulatedBlock;

constexpr uint64_t kKernelSeed = 0x123456789abcdef;

// All lanes get the digest. Copies when the chunk has a place for it.
Digest ByWarp(const DeviceChunk& chunk, uint64_t seed) {
  const DigestKeys keys = MakeDigestKeys(seed);
  std::vector<Digest> found(kLanes);
  EmulatedBlock::Run(kLanes, [&] {
    found[threadIdx.x] =
        chunk.copy == nullptr ? DigestByWarp<false>(chunk, keys) : DigestByWarp<true>(chunk, keys);
  });
  for (const Digest& digest : found) EXPECT_EQ(digest, found[0]);
  return found[0];
}

template <int kWarps>
Digest ByBlock(const DeviceChunk& chunk, uint64_t seed) {
  const DigestKeys keys = MakeDigestKeys(seed);
  SharedSums<kWarps> shared;
  Digest found;
  EmulatedBlock::Run((kWarps + 1) * kLanes, [&] {
    const Digest digest = chunk.copy == nullptr ? DigestByBlock<false>(chunk, keys, &shared)
                                                : DigestByBlock<true>(chunk, keys, &shared);
    if (threadIdx.x == kWarps * kLanes) found = digest;
  });
  return found;
}

// Digests by a warp and by a block, without and with a copy.
template <int kWarps>
void ExpectDigest(const Bytes& bytes, uint64_t seed = kKernelSeed) {
  const Digest expected = ComputeDigest(seed, bytes.get());
  EXPECT_EQ(ByWarp(bytes.chunk(), seed), expected);
  EXPECT_EQ(ByBlock<kWarps>(bytes.chunk(), seed), expected);
  const CopyOf by_warp(bytes), by_block(bytes);
  EXPECT_EQ(ByWarp(by_warp.chunk(), seed), expected);
  by_warp.ExpectCopied();
  EXPECT_EQ(ByBlock<kWarps>(by_block.chunk(), seed), expected);
  by_block.ExpectCopied();
}

// Around whole stripes, whole blocks, what a warp loads at once, and what a block of warps does.
std::vector<uint64_t> Sizes() {
  std::vector<uint64_t> sizes;
  for (const uint64_t near : {256, 1024, 2048, 4096, 5120, 8192, 9216}) {
    for (const int64_t off : {-64, -15, -1, 0, 1, 15, 16, 65}) sizes.push_back(near + off);
  }
  sizes[0] = kMinDigestBytes;
  return sizes;
}

TEST(DigestKernelTest, SizesAroundStripesAndBlocks) {
  for (const uint64_t size : Sizes()) {
    SCOPED_TRACE(std::to_string(size) + " bytes");
    ExpectDigest<2>(Bytes(size, 0));
  }
}

TEST(DigestKernelTest, EveryAlignment) {
  for (size_t offset = 0; offset < 16; ++offset) {
    for (const uint64_t size : {241, 1024, 2500, 4111, 4112, 5121, 8300}) {
      SCOPED_TRACE(std::to_string(size) + " bytes at " + std::to_string(offset));
      ExpectDigest<1>(Bytes(size, offset));
    }
  }
}

TEST(DigestKernelTest, EverySeed) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63}) {
    SCOPED_TRACE(seed);
    ExpectDigest<3>(Bytes(3000, 0), seed);
  }
}

// Uses as many warps as the GPU's kernel, and several batches of them.
TEST(DigestKernelTest, ALongChunk) {
  ExpectDigest<8>(Bytes(100'003, 0));
  ExpectDigest<8>(Bytes(100'003, 7));
}

// Any number of threads, also more than there are units of 16 bytes.
TEST(DigestKernelTest, WhatIsLeftIsCopied) {
  for (const size_t offset : {0, 1, 8, 15}) {
    for (const uint64_t size : {0, 1, 15, 16, 17, 31, 48, 511, 512, 513, 1000, 2047}) {
      for (const uint64_t begin : {0, 16, 512}) {
        if (begin > size) continue;
        SCOPED_TRACE(std::to_string(size) + " bytes at " + std::to_string(offset) + " from " +
                     std::to_string(begin));
        const Bytes bytes(size, offset);
        const CopyOf copy(bytes);
        EmulatedBlock::Run(2 * kLanes,
                           [&] { CopyRest(copy.chunk(), begin, threadIdx.x, 2 * kLanes); });
        copy.ExpectCopied(begin);
      }
    }
  }
}

}  // namespace
}  // namespace varve::internal::gpu
