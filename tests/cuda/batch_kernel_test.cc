// SPDX-License-Identifier: Apache-2.0
//
// Batches of chunks on the CPU: every job is done once.
// clang-format off
#include "tests/cuda/emulation.h"  // before the kernels
#include "cuda/batch_kernel.cuh"
// clang-format on

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "tests/cuda/kernel_bytes.h"

namespace varve::internal::gpu {
namespace {

using ::testing::Each;
using testing::EmulatedBlock;

constexpr uint64_t kSeed = 77;
constexpr Digest kNone = {1, 2};

// Jobs of many sizes and alignments, every other one with a copy, whose digests have places in
// another order.
class Jobs {
 public:
  explicit Jobs(size_t size) : digests_(size, kNone) {
    for (size_t i = 0; i < size; ++i) {
      const Bytes& bytes = bytes_.emplace_back(kMinDigestBytes + i * 997 % 6000, i % 16);
      const CopyOf& copy = copies_.emplace_back(bytes);
      jobs_.push_back({i % 2 == 0 ? bytes.chunk() : copy.chunk(), size - 1 - i});
    }
  }

  DigestBatch batch() {
    return {jobs_.data(), static_cast<uint32_t>(jobs_.size()), &next_, digests_.data()};
  }
  uint32_t& next() { return next_; }
  std::vector<Digest>& digests() { return digests_; }
  // Expects that everything is done from job `first` on, and nothing before.
  void ExpectDone(size_t first = 0) const {
    for (size_t i = 0; i < jobs_.size(); ++i) {
      const Digest expected = i < first ? kNone : ComputeDigest(kSeed, bytes_[i].get());
      EXPECT_EQ(digests_[jobs_[i].place], expected) << "job " << i;
      if (i >= first && i % 2 == 1) copies_[i].ExpectCopied();
    }
  }

 private:
  std::deque<Bytes> bytes_;
  std::deque<CopyOf> copies_;
  std::vector<DigestJob> jobs_;
  std::vector<Digest> digests_;
  uint32_t next_ = 0;
};

void RunWarps(Jobs* jobs) {
  const DigestKeys keys = MakeDigestKeys(kSeed);
  EmulatedBlock::Run(kWarpsPerBlock * kLanes, [&] { DigestWithWarps(jobs->batch(), keys); });
}
void RunBlock(Jobs* jobs) {
  const DigestKeys keys = MakeDigestKeys(kSeed);
  SharedDigest shared;
  EmulatedBlock::Run((kSummingWarps + 1) * kLanes,
                     [&] { DigestWithBlocks(jobs->batch(), keys, &shared); });
}

TEST(BatchKernelTest, AWarpTakesAJobForAllItsLanes) {
  uint32_t next = 5;
  std::vector<uint32_t> taken(kLanes);
  EmulatedBlock::Run(kLanes, [&] { taken[threadIdx.x] = TakeJob(&next); });
  EXPECT_THAT(taken, Each(5));
  EXPECT_EQ(next, 6u);
}

TEST(BatchKernelTest, ABlockTakesAJobForAllItsThreads) {
  constexpr int kThreads = 3 * kLanes;
  uint32_t next = 5, shared = 0;
  std::vector<uint32_t> first(kThreads), second(kThreads);
  EmulatedBlock::Run(kThreads, [&] {
    first[threadIdx.x] = TakeJobTogether(&next, &shared);
    second[threadIdx.x] = TakeJobTogether(&next, &shared);
  });
  EXPECT_THAT(first, Each(5));
  EXPECT_THAT(second, Each(6));
  EXPECT_EQ(next, 7u);
}

TEST(BatchKernelTest, WarpsDoAllJobs) {
  for (const size_t size : {1, 7, 8, 9, 40}) {
    Jobs jobs(size);
    RunWarps(&jobs);
    jobs.ExpectDone();
    EXPECT_EQ(jobs.next(), size + kWarpsPerBlock);  // each has found that there is none left
  }
}

TEST(BatchKernelTest, BlocksDoAllJobs) {
  for (const size_t size : {1, 2, 9}) {
    Jobs jobs(size);
    RunBlock(&jobs);
    jobs.ExpectDone();
    EXPECT_EQ(jobs.next(), size + 1);
  }
}

// Jobs that others have taken are theirs.
TEST(BatchKernelTest, NobodyDoesAJobThatIsTaken) {
  for (const auto run : {RunWarps, RunBlock}) {
    Jobs jobs(12);
    jobs.next() = 10;
    run(&jobs);
    jobs.ExpectDone(10);
    jobs.digests().assign(12, kNone);
    run(&jobs);
    EXPECT_THAT(jobs.digests(), Each(kNone));
  }
}

TEST(BatchKernelTest, BlocksCopyAllChunks) {
  std::deque<Bytes> bytes;
  std::deque<CopyOf> copies;
  std::vector<DeviceChunk> chunks;
  for (const uint64_t size : {1, 16, 4095, 4096, 4097, 9999}) {
    for (const size_t offset : {0, 3, 8}) {
      chunks.push_back(copies.emplace_back(bytes.emplace_back(size, offset)).chunk());
    }
  }
  uint32_t next = 0, shared = 0;
  const CopyBatch batch = {chunks.data(), static_cast<uint32_t>(chunks.size()), &next};
  EmulatedBlock::Run(kWarpsPerBlock * kLanes, [&] { CopyWithBlocks(batch, &shared); });
  for (const CopyOf& copy : copies) copy.ExpectCopied();
  EXPECT_EQ(next, chunks.size() + 1);
}

}  // namespace
}  // namespace varve::internal::gpu
