// SPDX-License-Identifier: Apache-2.0
//
// What the examples for GPUs share: CUDA's errors as Status, memory, streams and events that free
// themselves, and noise that host and device compute alike.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "varve/result.h"
#include "varve/status.h"

#ifdef __CUDACC__
#define CUDA_ON_BOTH __host__ __device__
#else
#define CUDA_ON_BOTH
#endif

namespace cuda_example {

inline varve::Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return varve::Status::Ok();
  return varve::Status::Unavailable(std::string(call) + ": " + cudaGetErrorString(error));
}

}  // namespace cuda_example

// Returns from a function that returns Status or Result when the call fails.
#define CUDA_OK(call) VARVE_RETURN_IF_ERROR(::cuda_example::ToStatus(call, #call))

namespace cuda_example {

struct FreeMemory {
  void operator()(std::byte* memory) const { (void)cudaFree(memory); }
};
using Memory = std::unique_ptr<std::byte, FreeMemory>;

inline varve::Result<Memory> Allocate(uint64_t bytes) {
  void* memory = nullptr;
  CUDA_OK(cudaMalloc(&memory, bytes));
  return Memory(static_cast<std::byte*>(memory));
}

struct FreeStream {
  void operator()(cudaStream_t stream) const { (void)cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, FreeStream>;

inline varve::Result<Stream> MakeStream() {
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

struct FreeEvent {
  void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, FreeEvent>;

inline varve::Result<Event> MakeEvent() {
  cudaEvent_t event = nullptr;
  CUDA_OK(cudaEventCreate(&event));
  return Event(event);
}

inline varve::Result<double> SecondsBetween(const Event& begin, const Event& end) {
  float milliseconds = 0;
  CUDA_OK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return milliseconds / 1e3;
}

// A 64-bit mix of its inputs.
CUDA_ON_BOTH inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Returns a number in [0, 1).
CUDA_ON_BOTH inline double Uniform(uint64_t a, uint64_t b) {
  return static_cast<double>(Mix(a, b) >> 11) * 0x1p-53;
}

}  // namespace cuda_example
