// SPDX-License-Identifier: Apache-2.0
//
// What a capture forbids, to its stream and to other threads.
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/host_runtime/host_runtime_test.h"

namespace varve::internal::testing {
namespace {

using Bytes = std::vector<char>;

TEST_F(HostRuntimeTest, ACapturingStreamTakesNoWork) {
  const cudaStream_t stream = NewStream();
  char* const memory = OnDevice();
  const auto status = [&] {
    cudaStreamCaptureStatus found{};
    EXPECT_CUDA(cudaStreamIsCapturing(stream, &found));
    return found;
  };
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(status(), cudaStreamCaptureStatusActive);
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(status(), cudaStreamCaptureStatusNone);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(cudaMemsetAsync(memory, 0, kSize, stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(status(), cudaStreamCaptureStatusInvalidated);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_CUDA(cudaMemsetAsync(memory, 0, kSize, stream));
}

// Each pair of the capture's mode and the thread's: whether a call that may be unsafe ends it.
TEST_F(HostRuntimeTest, CapturesForbidWhatTheirModeSays) {
  const cudaStream_t stream = NewStream();
  const cudaEvent_t event = NewEvent();
  const auto ends = [&](cudaStreamCaptureMode capture, cudaStreamCaptureMode thread,
                        bool on_another) {
    cudaError_t asked = cudaSuccess;
    const auto ask = [&] {
      cudaStreamCaptureMode mode = thread;
      EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
      EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
      asked = cudaEventQuery(event);
      EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
      EXPECT_EQ(mode, thread);
    };
    EXPECT_CUDA(cudaStreamBeginCapture(stream, capture));
    if (on_another) {
      std::jthread{ask};
    } else {
      ask();
    }
    cudaGraph_t graph = nullptr;
    const bool has_ended =
        cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated;
    EXPECT_EQ(asked, has_ended ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    return has_ended;
  };
  constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
  constexpr auto kThread = cudaStreamCaptureModeThreadLocal;
  constexpr auto kRelaxed = cudaStreamCaptureModeRelaxed;
  for (const auto thread : {kGlobal, kThread}) {
    EXPECT_TRUE(ends(kGlobal, thread, false));
    EXPECT_TRUE(ends(kThread, thread, false));
    EXPECT_FALSE(ends(kRelaxed, thread, false));
  }
  EXPECT_TRUE(ends(kGlobal, kGlobal, true));
  EXPECT_FALSE(ends(kThread, kGlobal, true));
  EXPECT_FALSE(ends(kRelaxed, kGlobal, true));
  for (const auto capture : {kGlobal, kThread, kRelaxed}) {
    EXPECT_FALSE(ends(capture, kThread, true));
    EXPECT_FALSE(ends(capture, kRelaxed, true));
    EXPECT_FALSE(ends(capture, kRelaxed, false));
  }
}

TEST_F(HostRuntimeTest, UnderACaptureOnlyCopiesOfPinnedMemoryAreSafe) {
  const cudaStream_t captured = NewStream(), stream = NewStream();
  const cudaEvent_t event = NewEvent();
  char *const memory = OnDevice(), *const pinned = Pinned(0);
  Bytes pageable(kSize);
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(cudaMemcpyAsync(memory, pinned, kSize, cudaMemcpyHostToDevice, stream));
  EXPECT_CUDA(cudaEventRecord(event, stream));
  EXPECT_CUDA(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_EQ(cudaMemcpyAsync(memory, pageable.data(), kSize, cudaMemcpyHostToDevice, stream),
            cudaErrorStreamCaptureUnsupported);
  cudaError_t ended = cudaSuccess;
  std::jthread{[&] { ended = cudaStreamEndCapture(captured, &graph); }};
  EXPECT_EQ(ended, cudaErrorStreamCaptureWrongThread);
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
}

}  // namespace
}  // namespace varve::internal::testing
