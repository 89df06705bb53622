// SPDX-License-Identifier: Apache-2.0
//
// A trainer whose current stream changes from call to call (CudaOptions::devices).
#include <chrono>
#include <thread>

#include "tests/cuda/host_device_fixture.h"
#include "tests/cuda/host_runtime/host_runtime_test.h"

namespace varve::internal::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class FollowingTest : public HostDeviceTest {
 protected:
  void SetUp() override {
    HostDeviceTest::SetUp();
    SetDelay(2ms, 7);
    other_ = *gpu::MakeStream();
    order_ = *gpu::MakeEvent();
    source_ = *CudaTensorSource::Create(
        {.devices = {0}, .staging_bytes = uint64_t{1} << 20, .bounce_bytes = uint64_t{32} << 20});
    Open();
    state_ = std::make_unique<DeviceState>(0, stream_.get());
    state_->Add(NormalTensor("large", {700'001}, 1));
    state_->Add(RandomTensor("small", DType::kU8, {3001}, 2), 1);
  }
  void TearDown() override {
    state_.reset();
    order_.reset();
    other_.reset();
    HostDeviceTest::TearDown();
  }

  CudaStream current() const { return {0, is_other_ ? other_.get() : stream_.get()}; }
  // The trainer itself orders the two streams, by an event.
  void ChangeStream() {
    VARVE_ASSERT_CUDA(cudaEventRecord(order_.get(), current().stream));
    is_other_ = !is_other_;
    VARVE_ASSERT_CUDA(cudaStreamWaitEvent(current().stream, order_.get(), 0));
    state_->UseStream(current().stream);
  }
  void Train(uint64_t step) {
    state_->Change(0, step % 2 << 20);
    state_->Change(1, 0);
  }

  gpu::Stream other_;
  gpu::Event order_;
  bool is_other_ = false;
  std::unique_ptr<DeviceState> state_;
};

TEST_F(FollowingTest, ASaveHasWhatTheCurrentStreamHadWritten) {
  for (uint64_t step = 1; step <= 8; ++step) {
    Train(step);
    const auto values = state_->Values();
    VARVE_ASSERT_OK(source_->Follow(current()));
    Begin(step, state_->state());
    if (step % 3 == 0) ChangeStream();  // during the forward pass
    VARVE_ASSERT_OK(source_->Follow(current()));
    VARVE_ASSERT_OK(ckpt_->AwaitStaged());
    VARVE_ASSERT_OK(source_->Release(current()));
    Train(step);  // at once
    ExpectSaved(step, values);
    ChangeStream();
  }
}

TEST_F(FollowingTest, ALoadComesAfterTheWorkOfTheCurrentStream) {
  VARVE_ASSERT_OK(source_->Follow(current()));
  Save(1, state_->state());
  VARVE_ASSERT_OK(source_->Release(current()));
  const auto values = state_->Values();
  for (int i = 0; i < 4; ++i) {
    ChangeStream();
    VARVE_ASSERT_CUDA(Enqueue(current().stream, [] { std::this_thread::sleep_for(100ms); }));
    state_->Clear();  // not done yet when the load starts
    VARVE_ASSERT_OK(source_->Follow(current()));
    VARVE_ASSERT_OK(ckpt_->Restore("1", {}, &state_->state()).status());
    for (size_t k = 0; k < state_->size(); ++k) {
      EXPECT_TRUE(SameBytes(state_->Download(k), values[k].bytes)) << values[k].name;
    }
  }
}

TEST_F(FollowingTest, AStreamThatIsCapturedIsRefused) {
  VARVE_ASSERT_CUDA(cudaStreamBeginCapture(other_.get(), cudaStreamCaptureModeRelaxed));
  for (const Status& status :
       {source_->Follow({0, other_.get()}), source_->Release({0, other_.get()})}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("captured"));
  }
  cudaGraph_t graph = nullptr;
  VARVE_ASSERT_CUDA(cudaStreamEndCapture(other_.get(), &graph));
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  VARVE_ASSERT_OK(source_->Follow({0, other_.get()}));
}

TEST_F(FollowingTest, TheDeviceIsNamed) {
  for (const Status& status :
       {source_->Follow({1, stream_.get()}), source_->Release({1, stream_.get()})}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("device 1"));
  }
  const auto given = CudaTensorSource::Create({.streams = {{0, stream_.get()}}});
  VARVE_ASSERT_OK(given.status());
  EXPECT_EQ((*given)->Follow({0, other_.get()}).code(), StatusCode::kInvalidArgument);
  for (const CudaOptions& twice : {CudaOptions{.streams = {{0, stream_.get()}}, .devices = {0}},
                                   CudaOptions{.streams = {}, .devices = {0, 0}}}) {
    const Status status = CudaTensorSource::Create(twice).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("device 0"));
  }
}

TEST_F(FollowingTest, ADeviceThatIsTooOldForTheKernelsIsUnavailable) {
  SetComputeCapability(7);
  const Status status = CudaTensorSource::Create({.devices = {1}}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("device 1: its compute capability is 7.x"));
}

}  // namespace
}  // namespace varve::internal::testing
