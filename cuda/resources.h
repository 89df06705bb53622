// SPDX-License-Identifier: Apache-2.0
//
// Device memory, pinned host memory, streams and events, as values that free themselves. They are
// allocated when something is opened, never while a trainer waits.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>

#include "cuda/cuda_check.h"
#include "varve/result.h"

namespace varve::internal::gpu {

// While this object lives, calls of this thread neither disturb nor are disturbed by the capture of
// a graph on another thread. That is safe because this project works on streams of its own.
class CaptureApart {
 public:
  CaptureApart() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~CaptureApart() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  CaptureApart(const CaptureApart&) = delete;
  CaptureApart& operator=(const CaptureApart&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // afterwards the mode of before
};

// Makes `device` current for CUDA calls while this object lives. On a thread of our own it stays
// current afterwards, until the thread changes it. Going back to a device that the thread has not
// used yet would make a context there. This is cheap, and does little when `device` is current
// already.
//
// The device is set before the capture mode is exchanged, because that makes a context on the
// current device, too.
class DeviceScope {
 public:
  enum class Thread { kTrainers, kOurs };
  explicit DeviceScope(int device, Thread thread = Thread::kTrainers)
      : status_(Enter(device)), goes_back_(thread == Thread::kTrainers) {}
  ~DeviceScope() {
    capture_.reset();
    if (is_changed_ && goes_back_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  const Status& status() const { return status_; }

 private:
  Status Enter(int device) {
    VARVE_CUDA(cudaGetDevice(&before_));
    if (before_ != device) VARVE_CUDA(cudaSetDevice(device));
    is_changed_ = before_ != device;
    capture_.emplace();
    return Status::Ok();
  }

  int before_ = 0;
  bool is_changed_ = false;
  std::optional<CaptureApart> capture_;
  const Status status_;  // Enter makes it, so it is declared after what Enter sets
  const bool goes_back_;
};

// Frees a value, wherever it was moved to.
template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* owned) const {
    const CaptureApart apart;
    (void)kFree(owned);
  }
};

// Memory for `size` values of a trivial type. Movable.
template <typename T, auto kFree>
class Buffer {
 public:
  Buffer() = default;
  Buffer(T* data, size_t size) : data_(data), size_(size) {}
  T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  std::unique_ptr<T, Free<kFree>> data_;
  size_t size_ = 0;
};
template <typename T>
using DeviceBuffer = Buffer<T, cudaFree>;
template <typename T>
using PinnedBuffer = Buffer<T, cudaFreeHost>;

// Allocates on the current device.
template <typename T>
Result<DeviceBuffer<T>> AllocateOnDevice(size_t size) {
  void* memory = nullptr;
  VARVE_CUDA(cudaMalloc(&memory, size * sizeof(T)));
  return DeviceBuffer<T>(static_cast<T*>(memory), size);
}
template <typename T>
Result<PinnedBuffer<T>> AllocatePinned(size_t size) {
  void* memory = nullptr;
  VARVE_CUDA(cudaHostAlloc(&memory, size * sizeof(T), cudaHostAllocPortable));
  return PinnedBuffer<T>(static_cast<T*>(memory), size);
}

using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Free<cudaStreamDestroy>>;

// Makes a stream of the current device that waits for no other stream. It has the least priority,
// which is the greatest number, so that work of a trainer with another priority goes first.
inline Result<Stream> MakeStream() {
  int least = 0, greatest = 0;
  VARVE_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  VARVE_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, least));
  return Stream(stream);
}

using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Free<cudaEventDestroy>>;

// Makes an event of the current device for waiting, not for timing. A host thread that waits for it
// sleeps. Waits are mostly for milliseconds of copies or digests, and spinning would take a core
// from the trainer.
inline Result<Event> MakeEvent() {
  cudaEvent_t event = nullptr;
  VARVE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  return Event(event);
}

}  // namespace varve::internal::gpu
