// SPDX-License-Identifier: Apache-2.0
//
// One checkpointer whose tensors lie on two devices. Neither is the device on which threads start.
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "base/digest.h"
#include "tests/cuda/host_device_fixture.h"
#include "tests/cuda/host_runtime/host_runtime_test.h"
#include "tests/support/comes_true.h"
#include "tests/support/sizes.h"

namespace varve::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kFirst = 1, kSecond = 2;
constexpr uint64_t kSeed = 7;

class TwoDevicesTest : public HostDeviceTest {
 protected:
  void SetUp() override {
    testing::Reset();  // also of contexts
    UseKernels(Kernels::kReference);
    SetDevices(3);
    VARVE_ASSERT_CUDA(cudaSetDevice(kFirst));
    HostDeviceTest::SetUp();
    {
      const gpu::DeviceScope scope(kSecond);
      second_stream_ = *gpu::MakeStream();
    }
    source_ = *CudaTensorSource::Create(
        {.streams = {{kFirst, stream_.get()}, {kSecond, second_stream_.get()}},
         .staging_bytes = uint64_t{1} << 20,
         .bounce_bytes = uint64_t{32} << 20});
    Open({.failure_is_fatal = false});
    first_ = std::make_unique<DeviceState>(kFirst, stream_.get());
    second_ = std::make_unique<DeviceState>(kSecond, second_stream_.get());
    first_->Add(NormalTensor("a", {600'000}, 1));
    second_->Add(NormalTensor("b", {700'001}, 2), 4);
    first_->Add(RandomTensor("c", DType::kU8, {100}, 3));
    second_->Add(RandomTensor("d", DType::kU8, {3001}, 4), 1);
    for (size_t i = 0; i < 2; ++i) {
      state_.tensors.push_back(first_->state().tensors[i]);
      state_.tensors.push_back(second_->state().tensors[i]);
    }
  }
  void TearDown() override {
    ckpt_.reset();
    source_.reset();
    first_.reset();
    second_.reset();
    (void)cudaStreamSynchronize(second_stream_.get());  // a test may have lost the device
    second_stream_.reset();
    EXPECT_THAT(Contexts(), ElementsAre(kFirst, kSecond));  // none where nothing is
    HostDeviceTest::TearDown();
  }

  std::vector<TestTensor> Values() const {
    std::vector<TestTensor> values = first_->Values();
    for (TestTensor& value : second_->Values()) values.push_back(std::move(value));
    return values;
  }
  // Some chunks of the large tensors, and all small ones.
  void Change(uint64_t step) {
    for (DeviceState* const state : {first_.get(), second_.get()}) {
      state->Change(0, step % 2 << 20);
      state->Change(1, 0);
    }
  }
  // Restores what was saved into whatever is there now. From then on the tensors hold that.
  void ExpectRestores(uint64_t step, const std::vector<TestTensor>& values) {
    first_->Clear();
    second_->Clear();
    VARVE_ASSERT_OK(ckpt_->Restore(std::to_string(step), {}, &state_).status());
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(SameBytes(first_->Download(i), values[i].bytes)) << values[i].name;
      EXPECT_TRUE(SameBytes(second_->Download(i), values[2 + i].bytes)) << values[2 + i].name;
      first_->Set(i, values[i].bytes);
      second_->Set(i, values[2 + i].bytes);
    }
  }
  // Saves with BeginSave and AwaitStaged, to the end. The trainer changes everything right after
  // AwaitStaged.
  Status TrySaveWhileTraining(uint64_t step) {
    const auto begun = ckpt_->BeginSave(step, state_);
    const Status awaited = ckpt_->AwaitStaged();
    Change(step);
    const Status waited = ckpt_->Wait();
    if (!begun.ok()) return begun.status();
    if (!awaited.ok()) return awaited;
    return waited.ok() ? ckpt_->last_stats()->status : waited;
  }
  Status TrySaveEither(uint64_t step, bool while_training) {
    return while_training ? TrySaveWhileTraining(step) : TrySave(step, state_);
  }
  // The trainer's writes are kernels from now on, so that no call that fails is its own.
  void WriteByKernels() {
    const auto by_kernel = [](cudaStream_t stream) {
      return [stream](void* to, const std::vector<std::byte>& bytes) {
        return Enqueue(stream, [to, bytes] { std::memcpy(to, bytes.data(), bytes.size()); });
      };
    };
    first_->UseWrite(by_kernel(stream_.get()));
    second_->UseWrite(by_kernel(second_stream_.get()));
  }
  // Large and small, of both devices in turn.
  std::vector<DeviceTensorSource::Chunk> Chunks() const {
    std::vector<DeviceTensorSource::Chunk> chunks;
    for (size_t i = 0; i < 4; ++i) {
      const DeviceState& of = i % 2 == 0 ? *first_ : *second_;
      const auto* const data = static_cast<const std::byte*>(state_.tensors[i].data);
      chunks.push_back({state_.tensors[i].device, {data, of.Size(i / 2)}});
    }
    return chunks;
  }
  void ExpectDigests(const Result<const Digest*>& found) {
    VARVE_ASSERT_OK(found.status());
    for (size_t i = 0; i < 4; ++i) {
      const std::vector<TestTensor> values = (i % 2 == 0 ? *first_ : *second_).Values();
      EXPECT_EQ((*found)[i], ComputeDigest(kSeed, values[i / 2].bytes)) << values[i / 2].name;
    }
  }

  gpu::Stream second_stream_;
  std::unique_ptr<DeviceState> first_, second_;
  TrainingState state_;  // of both
};

TEST_F(TwoDevicesTest, WhatIsSavedComesBack) {
  for (uint64_t step = 1; step <= 6; ++step) {
    const std::vector<TestTensor> values = Values();
    VARVE_ASSERT_OK(TrySaveEither(step, step % 2 == 0));
    ExpectSaved(step, values);
    ExpectRestores(step, values);
    Change(step);
  }
}

// Each call for the second device fails once. The save says so, with the device, or is whole.
// Earlier saves and the next one are whole.
TEST_F(TwoDevicesTest, ACallThatFailsOnOneFailsTheSaveAlone) {
  const std::vector<TestTensor> saved = Values();
  WriteByKernels();
  VARVE_ASSERT_OK(TrySave(1, state_));
  uint64_t step = 1;
  for (const char* function :
       {"LaunchDigests", "LaunchCopies", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord",
        "cudaStreamWaitEvent", "cudaEventSynchronize", "cudaStreamSynchronize",
        "cudaStreamIsCapturing"}) {
    int failed = 0;
    for (int after = 0; after < (kUnderTsan ? 2 : 8); ++after) {
      SCOPED_TRACE(std::string(function) + " after " + std::to_string(after));
      const bool while_training = after % 2 == 1;
      Change(step);
      const std::vector<TestTensor> values = Values();
      FailCall(function, cudaErrorLaunchFailure, after / 2, kSecond);
      const Status status = TrySaveEither(++step, while_training);
      FailCall(function, cudaSuccess);
      if (status.ok()) {
        ExpectSaved(step, values);
      } else {
        EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
        EXPECT_THAT(status.ToString(), HasSubstr(std::string("device 2: CUDA: ") + function));
        ++failed;
      }
      const std::vector<TestTensor> next = Values();
      VARVE_ASSERT_OK(TrySaveEither(++step, while_training));
      ExpectSaved(step, next);
    }
    EXPECT_GT(failed, 0) << function;
  }
  ExpectSaved(1, saved);
}

TEST_F(TwoDevicesTest, OneThatIsLostFailsTheSaveAndNothingElse) {
  const std::vector<TestTensor> saved = Values();
  VARVE_ASSERT_OK(TrySave(1, state_));
  Change(1);
  HoldDevice(kSecond, true);  // or the save might be over before the loss
  Begin(2, state_);
  LoseDevice(kSecond);
  HoldDevice(kSecond, false);
  ckpt_->AwaitStaged().IgnoreError();
  ckpt_->Wait().IgnoreError();
  const Status status = ckpt_->last_stats()->status;
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.ToString(), HasSubstr("device 2: CUDA: "));
  EXPECT_THAT(ckpt_->BeginSave(3, state_), FailsWith(StatusCode::kUnavailable, "device 2: CUDA: "));
  ExpectHolds(ckpt_->store(), 1, saved);
  EXPECT_FALSE(ckpt_->store().OpenCheckpoint("main", 2).ok());
}

TEST_F(TwoDevicesTest, ARestoreThatFailsOnOneSaysWhich) {
  VARVE_ASSERT_OK(TrySave(1, state_));
  for (const char* function : {"cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize"}) {
    FailCall(function, cudaErrorLaunchFailure, 0, kSecond);
    EXPECT_THAT(ckpt_->Restore("1", {}, &state_),
                FailsWith(StatusCode::kUnavailable, std::string("device 2: CUDA: ") + function));
  }
  ExpectRestores(1, Values());
}

// There is no room on the host: what changed is read when the save comes to it.
TEST_F(TwoDevicesTest, AReadThatFailsOnOneSaysWhich) {
  ckpt_.reset();
  Open({.staging_budget_bytes = 4096, .failure_is_fatal = false});
  const std::vector<TestTensor> values = Values();
  FailCall("cudaStreamSynchronize", cudaErrorLaunchFailure, 4, kSecond);  // behind AwaitCopies
  EXPECT_THAT(TrySave(1, state_),
              FailsWith(StatusCode::kUnavailable, "device 2: CUDA: cudaStreamSynchronize"));
  VARVE_ASSERT_OK(TrySave(2, state_));
  ExpectSaved(2, values);
}

TEST_F(TwoDevicesTest, DigestsOfBothAreOfTheBeginOfTheSave) {
  VARVE_ASSERT_OK(source_->PrepareDigestNow(Chunks()));
  VARVE_ASSERT_OK(source_->MarkBegin());
  ExpectDigests(source_->DigestNow(kSeed, Chunks()));
  auto gate = std::make_unique<Gate>(second_stream_.get());
  Change(1);
  VARVE_ASSERT_OK(source_->MarkBegin());
  const int launched = NumCalls("LaunchDigests");
  auto digests =
      std::async(std::launch::async, [this] { return source_->DigestNow(kSeed, Chunks()); });
  while (NumCalls("LaunchDigests") < launched + 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // who does not wait reads old bytes
  gate->Open();
  ExpectDigests(digests.get());
}

// The second digests while the first is held up.
TEST_F(TwoDevicesTest, BothDigestAtTheSameTime) {
  VARVE_ASSERT_OK(source_->PrepareDigestNow(Chunks()));
  VARVE_ASSERT_OK(source_->MarkBegin());
  AwaitIdle();
  HoldDevice(kFirst, true);
  const int launched = NumCalls("LaunchDigests");
  auto digests =
      std::async(std::launch::async, [this] { return source_->DigestNow(kSeed, Chunks()); });
  EXPECT_TRUE(ComesTrue([&] { return NumCalls("LaunchDigests") >= launched + 2; }));
  EXPECT_EQ(NumCalls("LaunchDigests"), launched + 2);
  HoldDevice(kFirst, false);
  ExpectDigests(digests.get());
}

// In a save, too. The first device comes first in the list, and is held up: all digests are
// started, and the second copies all that it has, more pieces than a device has under way at once.
TEST_F(TwoDevicesTest, BothDigestAndCopyInASaveAtTheSameTime) {
  constexpr size_t kBytes = 17 * kMiB, kCopies = 3;  // more than half of a piece each
  std::vector<std::byte> host(2 * kCopies * kBytes);
  std::vector<DeviceTensorSource::Chunk> chunks;
  std::vector<DeviceTensorSource::Copy> copies;
  for (DeviceState* const state : {first_.get(), second_.get()}) {
    state->Add(FilledTensor("e", kCopies * kBytes, std::byte(5)));
    for (size_t i = 1; i < kCopies; ++i) state->Change(2, i * kBytes);
    const StateTensor& tensor = state->state().tensors[2];
    for (size_t i = 0; i < kCopies; ++i) {
      const auto* const data = static_cast<const std::byte*>(tensor.data) + i * kBytes;
      copies.push_back({chunks.size(), host.data() + chunks.size() * kBytes});
      chunks.push_back({tensor.device, {data, kBytes}});
    }
  }
  VARVE_ASSERT_OK(source_->Prepare(chunks, host));
  VARVE_ASSERT_OK(source_->MarkBegin());
  AwaitIdle();
  HoldDevice(kFirst, true);
  const int launched = NumCalls("LaunchDigests");
  VARVE_ASSERT_OK(source_->BeginDigests(kSeed, {.is_awaiting = [] { return false; }}));
  EXPECT_EQ(NumCalls("LaunchDigests"), launched + 2);
  HoldDevice(kFirst, false);
  for (size_t have = 0; have < chunks.size();) {
    const auto digests = source_->TakeDigests(have);
    VARVE_ASSERT_OK(digests.status());
    have = digests->size();
  }
  AwaitIdle();
  HoldDevice(kFirst, true);
  const int copied = NumCalls("cudaMemcpyAsync");
  auto done = std::async(std::launch::async, [&] { return source_->CopyToHost(copies); });
  constexpr int kUnderWay = 2;  // on a device
  const int expected = copied + kUnderWay + static_cast<int>(kCopies);
  EXPECT_TRUE(ComesTrue([&] { return NumCalls("cudaMemcpyAsync") >= expected; }));
  EXPECT_EQ(NumCalls("cudaMemcpyAsync"), expected);
  HoldDevice(kFirst, false);
  VARVE_ASSERT_OK(done.get().status());
  VARVE_ASSERT_OK(source_->MarkRelease());
  VARVE_ASSERT_OK(source_->AwaitCopies());
  const std::vector<TestTensor> of_first = first_->Values(), of_second = second_->Values();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::vector<std::byte>& values = (i < kCopies ? of_first : of_second)[2].bytes;
    EXPECT_EQ(std::memcmp(copies[i].to, values.data() + i % kCopies * kBytes, kBytes), 0);
  }
  VARVE_ASSERT_OK(source_->Prepare({}, {}));  // unpins `host`
}

TEST_F(TwoDevicesTest, DigestsThatFailOnOneSayWhich) {
  FailCall("cudaMalloc", cudaErrorMemoryAllocation, 0, kSecond);
  EXPECT_THAT(source_->PrepareDigestNow(Chunks()),
              FailsWith(StatusCode::kUnavailable, "device 2: CUDA: cudaMalloc"));
  VARVE_ASSERT_OK(source_->PrepareDigestNow(Chunks()));
  VARVE_ASSERT_OK(source_->MarkBegin());
  for (const char* function : {"cudaStreamWaitEvent", "LaunchDigests", "LaunchCopies",
                               "cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize"}) {
    for (int after = 0;; ++after) {
      FailCall(function, cudaErrorLaunchFailure, after, kSecond);
      const auto digests = source_->DigestNow(kSeed, Chunks());
      FailCall(function, cudaSuccess);
      EXPECT_TRUE(!digests.ok() || after > 0) << function;
      if (digests.ok()) break;
      EXPECT_THAT(digests,
                  FailsWith(StatusCode::kUnavailable, std::string("device 2: CUDA: ") + function));
      ExpectDigests(source_->DigestNow(kSeed, Chunks()));
      ASSERT_FALSE(HasFailure());
    }
  }
}

}  // namespace
}  // namespace varve::internal::testing
