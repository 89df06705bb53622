// SPDX-License-Identifier: Apache-2.0
//
// Captures of streams, and the calls that they forbid. CUDA does not list the calls that may be
// unsafe while a stream is capturing. Here it is all calls that allocate, free, wait or ask.
#include <algorithm>
#include <thread>
#include <utility>

#include "tests/cuda/host_runtime/machine.h"

namespace varve::internal::testing::runtime {
namespace {

constexpr std::string_view kMayBeUnsafe[] = {"cudaEventCreate",
                                             "cudaEventCreateWithFlags",
                                             "cudaEventDestroy",
                                             "cudaEventElapsedTime",
                                             "cudaEventQuery",
                                             "cudaEventSynchronize",
                                             "cudaFree",
                                             "cudaFreeHost",
                                             "cudaHostAlloc",
                                             "cudaHostRegister",
                                             "cudaHostUnregister",
                                             "cudaMalloc",
                                             "cudaMallocManaged",
                                             "cudaMemGetInfo",
                                             "cudaMemcpy",
                                             "cudaMemset",
                                             "cudaStreamCreateWithFlags",
                                             "cudaStreamCreateWithPriority",
                                             "cudaStreamDestroy",
                                             "cudaStreamQuery",
                                             "cudaStreamSynchronize"};

// Follows the documentation of cudaThreadExchangeStreamCaptureMode.
bool IsForbiddenBy(const Stream& stream) {
  if (stream.capture == cudaStreamCaptureStatusNone) return false;
  if (capture_mode == cudaStreamCaptureModeRelaxed) return false;
  const bool is_own = stream.captured_by == std::this_thread::get_id();
  if (is_own) return stream.capture_mode != cudaStreamCaptureModeRelaxed;
  return capture_mode == cudaStreamCaptureModeGlobal &&
         stream.capture_mode == cudaStreamCaptureModeGlobal;
}

}  // namespace

bool MayBeUnsafe(std::string_view function) {
  return std::ranges::count(kMayBeUnsafe, function) > 0;
}

cudaError_t Machine::DoUnsafe() {
  cudaError_t error = cudaSuccess;
  for (const StreamPointer& stream : running) {
    if (!IsForbiddenBy(*stream)) continue;
    stream->capture = cudaStreamCaptureStatusInvalidated;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

}  // namespace varve::internal::testing::runtime

using namespace varve::internal::testing::runtime;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return Call("cudaThreadExchangeStreamCaptureMode", [&](Machine&, Lock&) {
    std::swap(*mode, capture_mode);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return Call("cudaStreamIsCapturing", [&](Machine& machine, Lock&) {
    StreamPointer stream;
    const cudaError_t error = machine.FindStream(handle, &stream);
    if (error != cudaSuccess) return error;
    *status = stream->capture;
    return machine.LostDevice(stream->device);
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return Call("cudaStreamBeginCapture", [&](Machine& machine, Lock&) {
    if (handle == nullptr) return cudaErrorStreamCaptureUnsupported;
    StreamPointer stream;
    const cudaError_t error = machine.FindStream(handle, &stream);
    if (error != cudaSuccess) return error;
    if (stream->capture != cudaStreamCaptureStatusNone) return cudaErrorIllegalState;
    stream->capture = cudaStreamCaptureStatusActive;
    stream->capture_mode = mode;
    stream->captured_by = std::this_thread::get_id();
    return machine.LostDevice(stream->device);
  });
}

// There is never anything in the graph.
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return Call("cudaStreamEndCapture", [&](Machine& machine, Lock&) {
    StreamPointer stream;
    const cudaError_t error = machine.FindStream(handle, &stream);
    if (error != cudaSuccess) return error;
    *graph = nullptr;
    const cudaStreamCaptureStatus status = stream->capture;
    if (status == cudaStreamCaptureStatusNone) return cudaErrorIllegalState;
    const bool is_own = stream->captured_by == std::this_thread::get_id();
    if (!is_own && stream->capture_mode != cudaStreamCaptureModeRelaxed) {
      return cudaErrorStreamCaptureWrongThread;
    }
    stream->capture = cudaStreamCaptureStatusNone;
    if (status == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
    *graph = machine.NewHandle<cudaGraph_t>();
    machine.graphs[*graph] = stream->device;
    return machine.LostDevice(stream->device);
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Call("cudaGraphDestroy", [&](Machine& machine, Lock&) {
    return machine.graphs.erase(graph) == 1 ? cudaSuccess : cudaErrorInvalidValue;
  });
}
