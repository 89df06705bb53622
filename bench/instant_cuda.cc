// SPDX-License-Identifier: Apache-2.0
#include "bench/instant_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace varve::internal::bench::instant {

namespace {

std::span<const std::byte> device_memory;
std::span<const std::byte* const> changed_chunks;

}  // namespace

Marks& marks() {
  static Marks of_last;
  return of_last;
}

void SetMemory(std::span<const std::byte> memory) { device_memory = memory; }
void SetChanged(std::span<const std::byte* const> changed) { changed_chunks = changed; }
bool MayBeChanged(const std::byte* chunk) { return std::ranges::count(changed_chunks, chunk) > 0; }

}  // namespace varve::internal::bench::instant

using namespace varve::internal::bench::instant;

namespace {

template <typename Handle>
cudaError_t Make(Handle* handle) {
  static char things[1];
  *handle = reinterpret_cast<Handle>(things);
  return cudaSuccess;
}

cudaError_t Allocate(void** memory, size_t size) {
  *memory = std::aligned_alloc(256, (size + 255) / 256 * 256);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 132;  // H100's and H200's
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t size) { return Allocate(memory, size); }
cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned) { return Allocate(memory, size); }
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  const auto* const at = static_cast<const std::byte*>(memory);
  const bool is_device =
      at >= device_memory.data() && at < device_memory.data() + device_memory.size();
  *attributes = {};
  attributes->type = is_device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_step, const void* from, size_t from_step,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t) {
  for (size_t i = 0; i < height; ++i) {
    std::memcpy(static_cast<std::byte*>(to) + i * to_step,
                static_cast<const std::byte*>(from) + i * from_step, width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t size, cudaStream_t) {
  std::memset(memory, value, size);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return Make(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return Make(event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  Marks& of_save = marks();
  if (!of_save.is_awaited) of_save.awaited = Clock::now();
  of_save.is_awaited = true;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
