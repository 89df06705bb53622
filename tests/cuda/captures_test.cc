// SPDX-License-Identifier: Apache-2.0
//
// Graphs that the trainer captures while varve is at work, in CUDA's default mode, in which a call
// of any thread that may be unsafe ends the capture.
#include <chrono>
#include <future>
#include <thread>

#include "tests/cuda/host_device_fixture.h"
#include "tests/cuda/host_runtime/host_runtime_test.h"

namespace varve::internal::testing {
namespace {

using Bytes = std::vector<std::byte>;

cudaError_t EndCapture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  return error;
}

// A stream of its own is captured on a thread of its own.
class CapturingThread {
 public:
  CapturingThread() {
    std::promise<void> begun;
    thread_ = std::jthread([this, &begun] {
      const gpu::Stream stream = *gpu::MakeStream();
      EXPECT_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
      begun.set_value();
      end_.get_future().wait();
      result_ = EndCapture(stream.get());
    });
    begun.get_future().wait();
  }
  cudaError_t End() {
    end_.set_value();
    thread_.join();
    return result_;
  }

 private:
  std::promise<void> end_;
  cudaError_t result_ = cudaSuccess;
  std::jthread thread_;
};

class CapturesTest : public HostDeviceTest {
 protected:
  void SetUp() override {
    HostDeviceTest::SetUp();
    other_ = *gpu::MakeStream();
    MakeState();
  }
  void TearDown() override {
    state_.reset();
    other_.reset();
    HostDeviceTest::TearDown();
  }
  void MakeState() {
    state_ = std::make_unique<DeviceState>(0, stream_.get());
    state_->Add(NormalTensor("large", {600'000}, 1));
    state_->Add(RandomTensor("small", DType::kU8, {100}, 2));
  }
  // All that a trainer does with a checkpointer, from the first call to the last.
  void SaveAndRestore() {
    MakeSource(uint64_t{1} << 20);
    ASSERT_NE(source_, nullptr);
    Open();
    for (uint64_t step = 1; step <= 3; ++step) {
      const std::vector<TestTensor> values = state_->Values();
      Begin(step, state_->state());
      VARVE_ASSERT_OK(ckpt_->AwaitStaged());
      state_->Change(0, step);
      ExpectSaved(step, values);
    }
    Save(4, state_->state());
    ExpectSaved(4, state_->Values());
    const auto* const data = static_cast<const std::byte*>(state_->state().tensors[0].data);
    const std::vector<DeviceTensorSource::Chunk> chunks = {{0, {data, 4096}}, {0, {data, 8192}}};
    VARVE_ASSERT_OK(source_->PrepareDigestNow(chunks));
    VARVE_ASSERT_OK(source_->MarkBegin());
    VARVE_ASSERT_OK(source_->DigestNow(1, chunks).status());
    VARVE_ASSERT_OK(ckpt_->Restore("4", {}, &state_->state()).status());
    state_->Add(NormalTensor("more", {700'000}, 3));  // other tables, and other staging
    VARVE_ASSERT_OK(ckpt_->Prewarm(state_->state()));
    Save(5, state_->state());
    ExpectSaved(5, state_->Values());
    VARVE_ASSERT_OK(ckpt_->ReleaseStaging());
    VARVE_ASSERT_OK(ckpt_->Close());
    ckpt_.reset();
    source_.reset();
  }

  gpu::Stream other_;
  std::unique_ptr<DeviceState> state_;
};

TEST_F(CapturesTest, SavesLeaveThatOfAnotherThreadAlone) {
  CapturingThread capturing;
  SaveAndRestore();
  EXPECT_CUDA(capturing.End());
}

TEST_F(CapturesTest, SavesLeaveThatOfTheirOwnThreadAlone) {
  EXPECT_CUDA(cudaStreamBeginCapture(other_.get(), cudaStreamCaptureModeGlobal));
  SaveAndRestore();
  EXPECT_CUDA(EndCapture(other_.get()));
}

// Some trainers capture their backward pass when they first run it.
TEST_F(CapturesTest, OneFromTheBeginOfASaveToItsEnd) {
  Open();
  for (uint64_t step = 1; step <= 3; ++step) {
    const std::vector<TestTensor> values = state_->Values();
    Begin(step, state_->state());
    EXPECT_CUDA(cudaStreamBeginCapture(other_.get(), cudaStreamCaptureModeGlobal));
    VARVE_ASSERT_OK(ckpt_->AwaitStaged());
    state_->Set(0, Bytes(state_->Size(0), static_cast<std::byte>(step)));
    ExpectSaved(step, values);
    EXPECT_CUDA(EndCapture(other_.get()));
  }
}

// Capturing the given stream is a mistake when the save is awaited, and varve says so. The capture
// goes on, and so does the save.
TEST_F(CapturesTest, TheGivenStreamWhenTheSaveIsAwaited) {
  Open();
  Gate gate(stream_.get());
  const std::vector<TestTensor> values = state_->Values();
  Begin(1, state_->state());
  EXPECT_CUDA(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeGlobal));
  const std::jthread opener([&gate] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the save is awaited by then
    gate.Open();
  });
  EXPECT_THAT(ckpt_->AwaitStaged(),
              FailsWith(StatusCode::kFailedPrecondition, "stream of device 0 is being captured"));
  EXPECT_CUDA(EndCapture(stream_.get()));
  state_->Clear();
  ExpectSaved(1, values);
}

}  // namespace
}  // namespace varve::internal::testing
