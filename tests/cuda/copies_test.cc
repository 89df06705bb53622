// SPDX-License-Identifier: Apache-2.0
//
// Tests which chunks are copied together, how many copies are under way, and copies on a device.
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "tests/cuda/host_device_fixture.h"
#include "tests/cuda/host_runtime/host_runtime_test.h"
#include "tests/support/sizes.h"

namespace varve::internal::testing {
namespace {

// Tensors whose memory lies side by side, and whose chunks of 1 MiB do so on the host, too.
class CopiesTest : public HostDeviceTest {
 protected:
  void SetUp() override {
    HostDeviceTest::SetUp();
    PlaceSideBySide(80 * kMiB);
    state_ = std::make_unique<DeviceState>(0, stream_.get());
  }
  void TearDown() override {
    state_.reset();
    HostDeviceTest::TearDown();
  }
  void Add(std::string name, int64_t chunks) {
    const auto number = static_cast<uint64_t>(state_->size());
    state_->Add(NormalTensor(std::move(name), {chunks << 18}, number));
    if (number == 0) return;
    const auto* const before =
        static_cast<const std::byte*>(state_->state().tensors[number - 1].data);
    ASSERT_EQ(before + state_->Size(number - 1), state_->state().tensors[number].data);
  }
  // How many copies a save makes.
  int Copies(uint64_t step) {
    const int before = NumCalls("cudaMemcpyAsync");
    Save(step, state_->state());
    ExpectSaved(step, state_->Values());
    return NumCalls("cudaMemcpyAsync") - before;
  }

  std::unique_ptr<DeviceState> state_;
};

// A copy over two allocations is an error of CUDA.
TEST_F(CopiesTest, ATensorIsCopiedAsOneAndWithoutItsNeighbour) {
  Add("a", 3);
  Add("b", 2);
  MakeSource(0);
  Open();
  Copies(1);  // with the tables
  for (size_t at = 0; at < 3 * kMiB; at += kMiB) state_->Change(0, at);
  for (size_t at = 0; at < 2 * kMiB; at += kMiB) state_->Change(1, at);
  const int copies = Copies(2);
  EXPECT_EQ(copies - Copies(3), 2);  // nothing has changed in the last
}

TEST_F(CopiesTest, ATensorIsGatheredWithoutItsNeighbour) {
  Add("a", 3);
  Add("b", 2);
  MakeSource(8 * kMiB);
  Open();
  for (uint64_t step = 1; step <= 3; ++step) {
    Save(step, state_->state());
    ExpectSaved(step, state_->Values());
    EXPECT_EQ(ckpt_->last_stats()->staged_bytes, 5 * kMiB);
    for (size_t at = 0; at < 3 * kMiB; at += kMiB) state_->Change(0, at);
    for (size_t at = 0; at < 2 * kMiB; at += kMiB) state_->Change(1, at);
  }
}

// The host waits for pieces, not for each of the chunks in a piece.
TEST_F(CopiesTest, ChunksThatLieApartAreOnePiece) {
  Add("a", 9);
  MakeSource(0);
  Open();
  Copies(1);
  const auto waits = [&](uint64_t step, size_t changed) {
    for (size_t i = 0; i < changed; ++i) state_->Change(0, 2 * i * kMiB);
    const int before = NumCalls("cudaEventSynchronize");
    EXPECT_GE(Copies(step), static_cast<int>(changed));
    return NumCalls("cudaEventSynchronize") - before;
  };
  const int of_one = waits(2, 1);
  EXPECT_EQ(waits(3, 5), of_one);
}

// The trainer does not wait for the calls that copy staging to the host.
TEST_F(CopiesTest, StagingIsDrainedByWhoAwaitsTheCopies) {
  Add("a", 3);
  MakeSource(8 * kMiB);
  std::vector<std::byte> host(3 * kMiB);
  const auto* const data = static_cast<const std::byte*>(state_->state().tensors[0].data);
  std::vector<DeviceTensorSource::Chunk> chunks;
  std::vector<DeviceTensorSource::Copy> copies;
  for (size_t i = 0; i < 3; ++i) {
    chunks.push_back({0, {data + i * kMiB, kMiB}, i == 0});
    copies.push_back({i, host.data() + i * kMiB});
  }
  VARVE_ASSERT_OK(source_->Prepare(chunks, host));
  VARVE_ASSERT_OK(source_->MarkBegin());
  VARVE_ASSERT_OK(source_->BeginDigests(1, {.waits_at_once = true}));
  EXPECT_EQ(source_->TakeDigests(0)->size(), 3u);
  const uint64_t before = CopiedBytes(cudaMemcpyDeviceToHost);
  EXPECT_EQ(source_->CopyToHost(copies).value(), 0u);
  VARVE_ASSERT_OK(source_->MarkRelease());
  AwaitIdle();
  EXPECT_EQ(CopiedBytes(cudaMemcpyDeviceToHost), before);
  VARVE_ASSERT_OK(source_->AwaitCopies());
  EXPECT_EQ(CopiedBytes(cudaMemcpyDeviceToHost), before + 3 * kMiB);
  EXPECT_TRUE(host == state_->Values()[0].bytes);
  VARVE_ASSERT_OK(source_->Prepare({}, {}));  // before its memory goes
}

// Then the rest can be gathered when the trainer starts to wait.
TEST_F(CopiesTest, TwoPiecesAreUnderWayUntilTheTrainerWaits) {
  constexpr size_t kBytes = 17 * kMiB;  // more than half of a piece
  constexpr size_t kChunks = 4;         // the host waits with the third in hand
  MakeSource(kBytes);
  std::vector<std::byte> host(kChunks * kBytes);
  std::vector<DeviceTensorSource::Chunk> chunks;
  std::vector<DeviceTensorSource::Copy> copies;
  for (size_t i = 0; i < kChunks; ++i) {
    state_->Add(FilledTensor("t" + std::to_string(i), kBytes, std::byte(i + 1)));
    const auto* const data = static_cast<const std::byte*>(state_->state().tensors[i].data);
    chunks.push_back({0, {data, kBytes}});
    copies.push_back({i, host.data() + i * kBytes});
  }
  VARVE_ASSERT_OK(source_->Prepare(chunks, host));
  VARVE_ASSERT_OK(source_->MarkBegin());
  std::atomic<bool> is_awaited = false;
  VARVE_ASSERT_OK(source_->BeginDigests(1, {.is_awaiting = [&] { return is_awaited.load(); }}));
  EXPECT_EQ(source_->TakeDigests(0)->size(), kChunks);
  HoldDevice(0, true);
  const int before = NumCalls("cudaMemcpyAsync");
  auto enqueued = std::async(std::launch::async, [&] { return source_->CopyToHost(copies); });
  while (NumCalls("cudaMemcpyAsync") < before + 2 &&
         enqueued.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // who does not wait goes on
  EXPECT_EQ(NumCalls("cudaMemcpyAsync"), before + 2);
  is_awaited = true;
  HoldDevice(0, false);
  EXPECT_EQ(*enqueued.get(), 0u);  // bytes that the trainer waited for
  EXPECT_EQ(NumCalls("LaunchCopies"), 1);
  VARVE_ASSERT_OK(source_->MarkRelease());
  VARVE_ASSERT_OK(source_->AwaitCopies());
  const std::vector<TestTensor> values = state_->Values();
  for (size_t i = 0; i < kChunks; ++i) {
    EXPECT_EQ(std::memcmp(host.data() + i * kBytes, values[i].bytes.data(), kBytes), 0) << i;
  }
  VARVE_ASSERT_OK(source_->Prepare({}, {}));  // before its memory goes
}

// What a load moves on a device: dense, with steps on one side or both, and nothing. It comes after
// the work of the trainer.
TEST_F(CopiesTest, BlocksAreCopiedOnTheDevice) {
  MakeSource(0);
  state_->Add(RandomTensor("from", DType::kU8, {6000}, 1));
  state_->Add(RandomTensor("to", DType::kU8, {6000}, 2));
  const auto* const from = static_cast<const std::byte*>(state_->state().tensors[0].data);
  auto* const to = static_cast<std::byte*>(state_->state().tensors[1].data);
  const std::vector<DeviceTensorSource::Block> blocks = {
      {.from = from, .to = to + 3, .bytes = 100},
      {.from = from + 100, .to = to + 200, .bytes = 7, .count = 50, .from_step = 7, .to_step = 7},
      {.from = from + 450, .to = to + 1000, .bytes = 9, .count = 30, .from_step = 9, .to_step = 50},
      {.from = from + 1001,
       .to = to + 3000,
       .bytes = 5,
       .count = 40,
       .from_step = 60,
       .to_step = 11}};
  std::vector<std::byte> expected = state_->Values()[1].bytes;
  Gate gate(stream_.get());
  state_->Change(0, 50);  // after the gate
  const std::vector<std::byte> source = state_->Values()[0].bytes;
  for (const auto& block : blocks) {
    for (uint64_t i = 0; i < block.count; ++i) {
      std::memcpy(expected.data() + (block.to - to) + i * block.to_step,
                  source.data() + (block.from - from) + i * block.from_step, block.bytes);
    }
  }
  auto done = std::async(std::launch::async, [&] { return source_->CopyOnDevice(0, blocks); });
  while (NumCalls("cudaMemcpy2DAsync") < 2 &&
         done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    std::this_thread::yield();
  }
  gate.Open();
  VARVE_ASSERT_OK(done.get());
  EXPECT_TRUE(state_->Download(1) == expected);
  VARVE_EXPECT_OK(source_->CopyOnDevice(0, {}));
  EXPECT_THAT(source_->CopyOnDevice(1, {}), FailsWith(StatusCode::kInvalidArgument, "device 1"));
  for (const char* function : {"cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaStreamSynchronize"}) {
    FailCall(function, cudaErrorLaunchFailure);
    EXPECT_THAT(source_->CopyOnDevice(0, blocks),
                FailsWith(StatusCode::kUnavailable, std::string("device 0: CUDA: ") + function));
  }
}

}  // namespace
}  // namespace varve::internal::testing
