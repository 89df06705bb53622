// SPDX-License-Identifier: Apache-2.0
//
// Batches of chunks on the CPU: every job is done once.
// clang-format off
#include "tests/cuda/emulation.h"  // before the kernels
#include "cuda/batch_kernel.cuh"
// clang-format on

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "tests/cuda/kernel_bytes.h"

namespace varve::internal::gpu {
namespace {

using ::testing::Each;
using testing::EmulatedBlock;

constexpr uint64_t kBatchSeed = 77;
constexpr Digest kNone = {1, 2};

// Chunks of many sizes and alignments in runs of 1 to 3, every other run with copies. Runs have
// places in another order. Some jobs are for warps, and the others for blocks.
class Jobs {
 public:
  Jobs(size_t runs, size_t by_warps) {
    for (size_t i = 0; i < runs; ++i) {
      const size_t count = 1 + i % 3, size = kMinDigestBytes + i * 997 % 6000;
      sizes_.push_back({count, size});
      memories_.emplace_back(count * size, i % 16);
      runs_.push_back({memories_.back().get().data(), size, static_cast<uint32_t>(size_), 0});
      size_ += count;
    }
    size_t place = 0;
    for (size_t i = runs; i-- > 0;) {
      runs_[i].first_place = static_cast<uint32_t>(place);
      place += sizes_[i].count;
    }
    digests_.assign(size_, kNone);
    places_.assign(size_, nullptr);
    for (size_t i = 0; i < runs; ++i) {
      for (size_t k = 0; k < sizes_[i].count; ++k) {
        copies_.emplace_back(sizes_[i].bytes + 32);
        if (i % 2 == 1) places_[runs_[i].first_place + k] = Aligned(copies_.back().data());
      }
    }
    by_warps_ = std::min(by_warps, size_);
  }

  size_t size() const { return size_; }
  DigestBatch batch() {
    return {.runs = runs_.data(),
            .num_runs = static_cast<uint32_t>(runs_.size()),
            .first = 0,
            .size = static_cast<uint32_t>(size_),
            .num_by_warps = static_cast<uint32_t>(by_warps_),
            .next = next_,
            .copies = places_.data(),
            .digests = digests_.data()};
  }
  uint32_t* next() { return next_; }
  std::vector<Digest>& digests() { return digests_; }
  // Expects that everything is done from job `first` on, and nothing before.
  void ExpectDone(size_t first = 0) const {
    size_t job = 0;
    for (size_t i = 0; i < runs_.size(); ++i) {
      for (size_t k = 0; k < sizes_[i].count; ++k, ++job) {
        const auto bytes = memories_[i].get().subspan(k * sizes_[i].bytes, sizes_[i].bytes);
        const size_t place = runs_[i].first_place + k;
        EXPECT_EQ(digests_[place], job < first ? kNone : ComputeDigest(kBatchSeed, bytes)) << job;
        if (job < first || places_[place] == nullptr) continue;
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), places_[place])) << job;
      }
    }
  }

 private:
  struct Size {
    size_t count, bytes;
  };
  static std::byte* Aligned(std::byte* memory) {
    return memory + (16 - reinterpret_cast<uintptr_t>(memory) % 16) % 16;
  }

  std::vector<Size> sizes_;
  std::deque<Bytes> memories_;
  std::deque<std::vector<std::byte>> copies_;
  std::vector<std::byte*> places_;
  std::vector<DigestRun> runs_;
  std::vector<Digest> digests_;
  size_t size_ = 0;
  size_t by_warps_ = 0;
  uint32_t next_[2] = {};
};

void RunJobs(Jobs* jobs) {
  const DigestKeys keys = MakeDigestKeys(kBatchSeed);
  SharedDigest<kSummingWarps> shared;
  EmulatedBlock::Run(kWarpsPerBlock * kLanes, [&] { DigestJobs(jobs->batch(), keys, &shared); });
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
  for (const size_t runs : {1, 4, 5, 20}) {
    Jobs jobs(runs, 1000);
    RunJobs(&jobs);
    jobs.ExpectDone();
    EXPECT_EQ(jobs.next()[0], jobs.size() + kWarpsPerBlock);  // each has found that none is left
    EXPECT_EQ(jobs.next()[1], 0u);
  }
}

TEST(BatchKernelTest, BlocksDoAllJobs) {
  for (const size_t runs : {1, 2, 7}) {
    Jobs jobs(runs, 0);
    RunJobs(&jobs);
    jobs.ExpectDone();
    EXPECT_EQ(jobs.next()[0], 0u);
    EXPECT_EQ(jobs.next()[1], jobs.size() + 1);
  }
}

TEST(BatchKernelTest, BlocksDoWhatWarpsLeave) {
  for (const size_t by_warps : {1, 8, 16}) {
    Jobs jobs(9, by_warps);
    RunJobs(&jobs);
    jobs.ExpectDone();
    EXPECT_EQ(jobs.next()[1], jobs.size() - by_warps + 1);
  }
}

// Jobs that others have taken are theirs.
TEST(BatchKernelTest, NobodyDoesAJobThatIsTaken) {
  for (const size_t by_warps : {0, 1000}) {
    Jobs jobs(6, by_warps);
    jobs.next()[by_warps > 0 ? 0 : 1] = 10;
    RunJobs(&jobs);
    jobs.ExpectDone(10);
    jobs.digests().assign(jobs.size(), kNone);
    RunJobs(&jobs);
    EXPECT_THAT(jobs.digests(), Each(kNone));
  }
}

TEST(BatchKernelTest, WideBlocksDoAllJobs) {
  for (const size_t runs : {1, 2, 7}) {
    Jobs jobs(runs, 0);
    const DigestKeys keys = MakeDigestKeys(kBatchSeed);
    SharedDigest<kSummingWarpsOfWide> shared;
    EmulatedBlock::Run(kWarpsPerWideBlock * kLanes,
                       [&] { DigestWithBlocks(jobs.batch(), keys, &shared); });
    jobs.ExpectDone();
    EXPECT_EQ(jobs.next()[1], jobs.size() + 1);  // the block has found that none is left
  }
}

// The jobs of a part alone, by warps and by blocks.
TEST(BatchKernelTest, ABatchMayBeAPartOfTheJobs) {
  Jobs jobs(9, 0);
  DigestBatch part = jobs.batch();
  part.first = 5;
  part.size -= 5;
  part.num_by_warps = 4;
  const DigestKeys keys = MakeDigestKeys(kBatchSeed);
  SharedDigest<kSummingWarps> shared;
  EmulatedBlock::Run(kWarpsPerBlock * kLanes, [&] { DigestJobs(part, keys, &shared); });
  jobs.ExpectDone(5);
}

TEST(BatchKernelTest, AJobIsFoundInItsRun) {
  Jobs jobs(20, 0);
  const DigestBatch batch = jobs.batch();
  uint32_t job = 0;
  for (uint32_t run = 0; run < batch.num_runs; ++run) {
    const DigestRun& of = batch.runs[run];
    for (uint32_t i = 0; i < 1 + run % 3; ++i, ++job) {
      const DigestJob found = FindJob(batch, job);
      EXPECT_EQ(found.chunk.data, of.data + i * of.chunk_bytes);
      EXPECT_EQ(found.chunk.bytes, of.chunk_bytes);
      EXPECT_EQ(found.place, of.first_place + i);
      EXPECT_EQ(found.chunk.copy, batch.copies[found.place]);
    }
  }
  EXPECT_EQ(job, jobs.size());
}

// A few that are left would keep few warps busy.
TEST(BatchKernelTest, WarpsTakeWholeRounds) {
  EXPECT_EQ(NumByWarps(0, 3168), 0u);
  EXPECT_EQ(NumByWarps(64, 3168), 0u);
  EXPECT_EQ(NumByWarps(3168, 3168), 3168u);
  EXPECT_EQ(NumByWarps(3700, 3168), 3168u);
  EXPECT_EQ(NumByWarps(2771, 3168), 0u);
  EXPECT_EQ(NumByWarps(2772, 3168), 2772u);  // seven of eight warps get one
  EXPECT_EQ(NumByWarps(131072, 3168), 131072u - 131072u % 3168);
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
