// SPDX-License-Identifier: Apache-2.0
//
// What a save of tensors on a device does for each tensor on the host, when it is like the save
// before. It counts what this costs: allocations, and bytes that RocksDB reads.
#include <rocksdb/perf_context.h>

#include "tests/cuda/counted_allocations.h"
#include "tests/cuda/host_device_fixture.h"

namespace varve::internal::testing {
namespace {

// What one thread has done.
struct Cost {
  int64_t allocations = 0;
  int64_t read_bytes = 0;  // by RocksDB, of keys and values

  static Cost Now() {
    const rocksdb::PerfContext& rocksdb = *rocksdb::get_perf_context();
    return {NumAllocations(),
            static_cast<int64_t>(rocksdb.get_read_bytes + rocksdb.iter_read_bytes)};
  }
  Cost operator-(const Cost& before) const {
    return {allocations - before.allocations, read_bytes - before.read_bytes};
  }
};

// The parts of a save. The same thread, the preparer, makes the calls.
struct SaveCost {
  Cost begin_save;  // the trainer's
  Cost launch;      // in BeginDigests
  Cost beside;      // until TakeDigests
  Cost compare;     // from there to CopyToHost
  Cost commit;      // on the thread that commits
};

// Notes costs as it forwards the calls of a save.
class CountingSource : public DeviceTensorSource {
 public:
  explicit CountingSource(std::shared_ptr<DeviceTensorSource> source)
      : source_(std::move(source)) {}
  SaveCost& cost() { return cost_; }

  Status Check(const Chunk& tensor) override { return source_->Check(tensor); }
  Status Prepare(std::span<const Chunk> chunks, std::span<std::byte> host) override {
    return source_->Prepare(chunks, host);
  }
  Status PrepareDigestNow(std::span<const Chunk> chunks) override {
    return source_->PrepareDigestNow(chunks);
  }
  Status MarkBegin() override { return source_->MarkBegin(); }
  Status BeginDigests(uint64_t seed, Trainer trainer) override {
    const Cost before = Cost::Now();
    const Status begun = source_->BeginDigests(seed, std::move(trainer));
    at_ = Cost::Now();
    cost_.launch = at_ - before;
    return begun;
  }
  Result<std::span<const Digest>> TakeDigests(size_t have) override {
    cost_.beside = Cost::Now() - at_;
    at_ = Cost::Now();
    return source_->TakeDigests(have);
  }
  Result<uint64_t> CopyToHost(std::span<const Copy> copies) override {
    cost_.compare = Cost::Now() - at_;
    return source_->CopyToHost(copies);
  }
  Status MarkRelease() override { return source_->MarkRelease(); }
  Status AwaitCopies() override { return source_->AwaitCopies(); }
  Result<const Digest*> DigestNow(uint64_t seed, std::span<const Chunk> chunks) override {
    return source_->DigestNow(seed, chunks);
  }
  Status Read(const Chunk& from, std::span<std::byte> to) override {
    return source_->Read(from, to);
  }
  std::span<std::byte> bounce() override { return source_->bounce(); }
  Status Write(std::span<const std::byte> from, int device, std::byte* to, int half) override {
    return source_->Write(from, device, to, half);
  }
  Status AwaitWrites(int half) override { return source_->AwaitWrites(half); }

 private:
  const std::shared_ptr<DeviceTensorSource> source_;
  Cost at_;
  SaveCost cost_;
};

class SaveCostTest : public HostDeviceTest {
 protected:
  void SetUp() override {
    HostDeviceTest::SetUp();
    UseKernels(Kernels::kReference);
  }
  // The cost of a save of so many tensors, of which one has changed since the save before.
  SaveCost CostOf(int tensors) {
    MakeSource();
    const auto counting = std::make_shared<CountingSource>(source_);
    Cost at_last_commit;
    Cost commit;
    ckpt_ = *AsyncCheckpointer::Open(
        folder_.path() / ("of" + std::to_string(tensors)),
        {.store = {.num_threads = 1}, .devices = counting, .on_save = [&](const SaveStats&) {
           commit = Cost::Now() - at_last_commit;
           at_last_commit = Cost::Now();
         }});
    DeviceState state(0, stream_.get());
    for (int i = 0; i < tensors; ++i) {
      state.Add(NormalTensor("a tensor of a long name " + std::to_string(1000 + i), {32, 64},
                             static_cast<uint64_t>(i)));
    }
    SaveCost cost;
    for (uint64_t step = 1; step <= 4; ++step) {
      state.Change(0, 0);
      const Cost before = Cost::Now();
      EXPECT_TRUE(ckpt_->BeginSave(step, state.state()).ok());
      const Cost begun = Cost::Now() - before;
      EXPECT_TRUE(ckpt_->AwaitStaged().ok());
      EXPECT_TRUE(ckpt_->Wait().ok());
      EXPECT_EQ(ckpt_->last_stats()->changed_bytes, 8192u * (step == 1 ? state.size() : 1));
      cost = counting->cost();
      cost.begin_save = begun;
      cost.commit = commit;
    }
    ExpectHolds(ckpt_->store(), 4, state.Values());
    EXPECT_TRUE(ckpt_->Close().ok());
    ckpt_.reset();
    return cost;
  }
};

constexpr int kFew = 20, kMany = 220;
// What may differ for other reasons, such as the number of digits of a number.
constexpr int64_t kSlack = (kMany - kFew) / 10;

TEST_F(SaveCostTest, NothingIsAllocatedForATensorBeforeTheLaunchNorAfterTheDigests) {
  const SaveCost few = CostOf(kFew), many = CostOf(kMany);
  EXPECT_LE(many.begin_save.allocations, few.begin_save.allocations + kSlack);
  EXPECT_LE(many.launch.allocations, few.launch.allocations + kSlack);
  EXPECT_LE(many.beside.allocations, few.beside.allocations + kSlack);
  EXPECT_LE(many.compare.allocations, few.compare.allocations + kSlack);
}

TEST_F(SaveCostTest, NothingIsLookedUpForATensor) {
  const SaveCost few = CostOf(kFew), many = CostOf(kMany);
  EXPECT_GT(few.beside.read_bytes, 0) << "lookups are not seen";
  EXPECT_EQ(many.begin_save.read_bytes, 0);
  EXPECT_EQ(many.launch.read_bytes, 0);
  EXPECT_LE(many.beside.read_bytes, few.beside.read_bytes + kSlack);
  EXPECT_EQ(many.compare.read_bytes, 0);
  // The counts of all lists are one value, of 4 bytes a list.
  EXPECT_LE(many.commit.read_bytes, few.commit.read_bytes + uint64_t{4} * (kMany - kFew) + kSlack);
}

// While the trainer computes, digests take a part of each processor.
TEST_F(SaveCostTest, DigestsLeaveRoomForATrainerThatComputes) {
  Open();
  DeviceState state(0, stream_.get());
  state.Add(NormalTensor("t", {64, 1024}, 1));
  Begin(1, state.state());
  VARVE_ASSERT_OK(ckpt_->AwaitStaged());
  EXPECT_EQ(LastDigestBlocks(), 1u * kProcessors);
  VARVE_ASSERT_OK(ckpt_->Wait());
  Save(2, state.state());
  EXPECT_EQ(LastDigestBlocks(), 3u * kProcessors);
  ExpectSaved(2, state.Values());
}

// Blocks are wide when each chunk can have a processor of its own, and no trainer computes.
TEST_F(SaveCostTest, BlocksAreWideWhereChunksAreFew) {
  for (const int64_t chunks : {kProcessors, kProcessors + 1}) {
    ckpt_.reset();
    Open({.run = "of" + std::to_string(chunks)});
    DeviceState state(0, stream_.get());
    state.Add(NormalTensor("t", {chunks << 18}, 1));
    Begin(1, state.state());
    VARVE_ASSERT_OK(ckpt_->AwaitStaged());
    EXPECT_FALSE(LastDigestWasWide());
    VARVE_ASSERT_OK(ckpt_->Wait());
    Save(2, state.state());
    EXPECT_EQ(LastDigestWasWide(), chunks == kProcessors);
    VARVE_ASSERT_OK(ckpt_->Wait());
    ExpectHolds(ckpt_->store(), 2, state.Values(), "of" + std::to_string(chunks));
  }
}

// To free memory of a device waits for the trainer's work there.
TEST_F(SaveCostTest, AStateThatGrowsFreesNothing) {
  Open();
  DeviceState state(0, stream_.get());
  const auto freed = [] { return NumCalls("cudaFree") + NumCalls("cudaFreeHost"); };
  for (uint64_t step = 1; step <= 6; ++step) {
    for (int i = 0; i < 1 << step; ++i) {
      state.Add(NormalTensor("large " + std::to_string(state.size()), {2000}, step));
      state.Add(NormalTensor("small " + std::to_string(state.size()), {20}, step));
    }
    const int before = freed();
    Save(step, state.state());
    ExpectSaved(step, state.Values());
    EXPECT_EQ(freed(), before);
  }
}

}  // namespace
}  // namespace varve::internal::testing
