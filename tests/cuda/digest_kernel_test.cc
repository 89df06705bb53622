// SPDX-License-Identifier: Apache-2.0
//
// The digest kernels on the CPU: bit for bit the digests of the codec, whatever the size and
// alignment.
// clang-format off
#include "tests/cuda/emulation.h"  // before the kernels
#include "cuda/digest_kernel.cuh"
// clang-format on

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

namespace varve::gpu {
namespace {

using testing::EmulatedBlock;

constexpr uint64_t kSeed = 0x123456789abcdef;

// Random bytes that begin `offset` behind a multiple of 16 and end with their memory.
class Bytes {
 public:
  Bytes(uint64_t size, size_t offset)
      : memory_(new (std::align_val_t(16)) std::byte[size + offset]) {
    std::mt19937_64 random(size * 16 + offset);
    bytes_ = {memory_.get() + offset, size};
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
  }
  std::span<const std::byte> get() const { return bytes_; }
  DeviceChunk chunk() const { return {bytes_.data(), bytes_.size()}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t(16)); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::span<std::byte> bytes_;
};

// All lanes get the digest.
Digest ByWarp(const DeviceChunk& chunk, uint64_t seed) {
  const DigestKeys keys = MakeDigestKeys(seed);
  std::vector<Digest> found(kLanes);
  EmulatedBlock::Run(kLanes, [&] { found[threadIdx.x] = DigestByWarp<false>(chunk, keys); });
  for (const Digest& digest : found) EXPECT_EQ(digest, found[0]);
  return found[0];
}

template <int kWarps>
Digest ByBlock(const DeviceChunk& chunk, uint64_t seed) {
  const DigestKeys keys = MakeDigestKeys(seed);
  SharedSums<kWarps> shared;
  Digest found;
  EmulatedBlock::Run((kWarps + 1) * kLanes, [&] {
    const Digest digest = DigestByBlock<false>(chunk, keys, &shared);
    if (threadIdx.x == kWarps * kLanes) found = digest;
  });
  return found;
}

// Around whole stripes, whole blocks, what a warp loads at once, and what a block of warps does.
std::vector<uint64_t> Sizes() {
  std::vector<uint64_t> sizes;
  for (const uint64_t near : {256, 1024, 2048, 4096, 5120, 8192, 9216}) {
    for (const int64_t off : {-64, -1, 0, 1, 16, 65}) sizes.push_back(near + off);
  }
  sizes[0] = kMinDigestBytes;
  return sizes;
}

TEST(DigestKernelTest, SizesAroundStripesAndBlocks) {
  for (const uint64_t size : Sizes()) {
    const Bytes bytes(size, 0);
    const Digest expected = ComputeDigest(kSeed, bytes.get());
    EXPECT_EQ(ByWarp(bytes.chunk(), kSeed), expected) << size << " bytes";
    EXPECT_EQ(ByBlock<2>(bytes.chunk(), kSeed), expected) << size << " bytes";
  }
}

TEST(DigestKernelTest, EveryAlignment) {
  for (size_t offset = 0; offset < 16; ++offset) {
    for (const uint64_t size : {1024, 2500, 5121}) {
      const Bytes bytes(size, offset);
      const Digest expected = ComputeDigest(kSeed, bytes.get());
      EXPECT_EQ(ByWarp(bytes.chunk(), kSeed), expected) << size << " bytes at " << offset;
      EXPECT_EQ(ByBlock<1>(bytes.chunk(), kSeed), expected) << size << " bytes at " << offset;
    }
  }
}

TEST(DigestKernelTest, EverySeed) {
  const Bytes bytes(3000, 0);
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63}) {
    const Digest expected = ComputeDigest(seed, bytes.get());
    EXPECT_EQ(ByWarp(bytes.chunk(), seed), expected) << seed;
    EXPECT_EQ(ByBlock<3>(bytes.chunk(), seed), expected) << seed;
  }
}

// As many warps as the GPU's kernel has, several batches of them.
TEST(DigestKernelTest, ALongChunk) {
  const Bytes bytes(100'003, 0);
  const Digest expected = ComputeDigest(kSeed, bytes.get());
  EXPECT_EQ(ByWarp(bytes.chunk(), kSeed), expected);
  EXPECT_EQ(ByBlock<8>(bytes.chunk(), kSeed), expected);
}

}  // namespace
}  // namespace varve::gpu
