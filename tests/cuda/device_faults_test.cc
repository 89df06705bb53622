// SPDX-License-Identifier: Apache-2.0
//
// What a save says, and what it leaves alone, when a device fails. It runs on the host's runtime,
// which can be told to fail.
#include "tests/cuda/host_device_fixture.h"

namespace varve::internal::testing {
namespace {

using ::testing::HasSubstr;

class DeviceFaultsTest : public HostDeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    MakeSource(uint64_t{1} << 20);
    Open({.failure_is_fatal = false});
    state_ = std::make_unique<DeviceState>(0, stream_.get());
    state_->Add(NormalTensor("a", {600'000}, 1));
    state_->Add(RandomTensor("b", DType::kU8, {100}, 2));
    Save(1, state_->state());
    ExpectSaved(1, state_->Values());
    saved_ = state_->Values();
  }
  void TearDown() override {
    state_.reset();
    HostDeviceTest::TearDown();
  }
  void ChangeAll() {
    std::vector<std::byte> bytes = state_->Values()[0].bytes;
    for (size_t at = 0; at < bytes.size(); at += 1000) bytes[at] ^= std::byte{1};
    state_->Set(0, std::move(bytes));
    state_->Change(1, 0);
  }
  std::unique_ptr<DeviceState> state_;
  std::vector<TestTensor> saved_;
};

// Each call of a save fails once. The save says so or is whole, and the next is.
TEST_F(DeviceFaultsTest, ACallThatFailsFailsTheSaveAlone) {
  uint64_t step = 1;
  for (const char* function :
       {"LaunchDigests", "LaunchCopies", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord",
        "cudaStreamWaitEvent", "cudaEventSynchronize", "cudaStreamSynchronize",
        "cudaStreamIsCapturing"}) {
    int failed = 0;
    for (int after = 0; after < (kUnderTsan ? 3 : 12); ++after) {
      ChangeAll();
      const std::vector<TestTensor> values = state_->Values();
      FailCall(function, cudaErrorLaunchFailure, after);
      const Status status = TrySave(++step, state_->state());
      FailCall(function, cudaSuccess);
      if (status.ok()) {
        ExpectSaved(step, values);
      } else {
        EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
        EXPECT_THAT(status.ToString(), HasSubstr(std::string("CUDA: ") + function));
        ++failed;
      }
      VARVE_ASSERT_OK(TrySave(++step, state_->state()));
      ExpectSaved(step, values);
    }
    EXPECT_GT(failed, 0) << function;
  }
  ExpectSaved(1, saved_);
}

TEST_F(DeviceFaultsTest, ADeviceThatIsLostFailsTheSaveAndNothingElse) {
  ChangeAll();
  HoldDevice(0, true);  // or the save might be over before the loss
  Begin(2, state_->state());
  LoseDevice(0);
  HoldDevice(0, false);
  ckpt_->AwaitStaged().IgnoreError();
  ckpt_->Wait().IgnoreError();
  const Status status = ckpt_->last_stats()->status;
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.ToString(), HasSubstr("CUDA: "));
  EXPECT_THAT(ckpt_->BeginSave(3, state_->state()),
              FailsWith(StatusCode::kUnavailable, "device 0: CUDA: "));
  ExpectHolds(ckpt_->store(), 1, saved_);
  EXPECT_FALSE(ckpt_->store().OpenCheckpoint("main", 2).ok());
}

TEST_F(DeviceFaultsTest, MemoryThatCannotBeHadIsNamedBeforeTheSave) {
  state_->Add(NormalTensor("c", {900'000}, 3));
  FailCall("cudaMalloc", cudaErrorMemoryAllocation);
  EXPECT_THAT(ckpt_->Prewarm(state_->state()),
              FailsWith(StatusCode::kUnavailable, "device 0: CUDA: cudaMalloc"));
  FailCall("cudaHostRegister", cudaErrorMemoryAllocation);
  EXPECT_THAT(ckpt_->BeginSave(2, state_->state()),
              FailsWith(StatusCode::kUnavailable, "bytes of staging: CUDA: cudaHostRegister"));
  Save(2, state_->state());
  ExpectSaved(2, state_->Values());
}

// There is staging for one chunk of three.
TEST_F(DeviceFaultsTest, SavesAndRestoresTakeNoMemoryAndCopyAsTheyShould) {
  VARVE_ASSERT_OK(ckpt_->Prewarm(state_->state()));
  const auto taken = [] {
    return NumCalls("cudaMalloc") + NumCalls("cudaHostAlloc") + NumCalls("cudaHostRegister");
  };
  const int before = taken();
  const auto save = [&](uint64_t step) {
    const int copied = NumCalls("LaunchCopies");
    Save(step, state_->state());
    ExpectSaved(step, state_->Values());
    return NumCalls("LaunchCopies") - copied;
  };
  EXPECT_EQ(save(2), 1);  // the small chunk
  EXPECT_EQ(ckpt_->last_stats()->changed_bytes, 0u);
  for (const auto& [step, copies] : {std::pair(3, 2), {4, 1}}) {
    ChangeAll();
    // A chunk that changes once is gathered. One that changes again is copied when it is digested.
    EXPECT_EQ(save(static_cast<uint64_t>(step)), copies);
    EXPECT_EQ(ckpt_->last_stats()->waited_bytes, 2'400'000u - (1u << 20));
  }
  ExpectRestores(4, state_.get());
  EXPECT_EQ(taken(), before);
}

TEST_F(DeviceFaultsTest, SizingThatFailsIsTriedAgain) {
  auto ckpt = *AsyncCheckpointer::Open(folder_.path() / "other", {.devices = source_});
  state_->Add(NormalTensor("more", {900'000}, 3));
  FailCall("cudaHostRegister", cudaErrorMemoryAllocation);
  EXPECT_THAT(ckpt->Prewarm(state_->state()), FailsWith(StatusCode::kUnavailable, "CUDA: cuda"));
  FailCall("cudaMalloc", cudaSuccess);
  FailCall("cudaHostRegister", cudaSuccess);
  VARVE_ASSERT_OK(ckpt->Prewarm(state_->state()));
  VARVE_ASSERT_OK(ckpt->Save(1, state_->state()).status());
  VARVE_ASSERT_OK(ckpt->Wait());
  EXPECT_EQ(ckpt->last_stats()->staged_bytes, ckpt->last_stats()->changed_bytes);
  VARVE_ASSERT_OK(ckpt->Close());
}

TEST_F(DeviceFaultsTest, ARestoreThatFailsSaysWhy) {
  FailCall("cudaMemcpyAsync", cudaErrorLaunchFailure);
  EXPECT_THAT(ckpt_->Restore("1", {}, &state_->state()),
              FailsWith(StatusCode::kUnavailable, "CUDA: cudaMemcpyAsync"));
  ExpectRestores(1, state_.get());
}

}  // namespace
}  // namespace varve::internal::testing
