// SPDX-License-Identifier: Apache-2.0
//
// The state behind host_runtime.h: guarded by one mutex, and used Unseen.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/cuda/host_runtime/host_runtime.h"
#include "tests/cuda/host_runtime/order.h"

namespace varve::internal::testing::runtime {

using Lock = std::unique_lock<std::mutex>;

// One piece of work of a stream.
struct Work {
  std::function<void()> run;
  // For Publish and Observe: what the host had done when it enqueued this, and what the stream had
  // done when it finished it.
  uint64_t enqueued_edge = 0;
  uint64_t done_edge = 0;
  bool is_done = false;
  std::chrono::steady_clock::time_point when;  // it was done
};
using WorkPointer = std::shared_ptr<Work>;

struct Stream {
  int device = 0;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::thread::id captured_by;
  bool is_closed = false;  // ends when its work is done
  std::deque<WorkPointer> queue;
  WorkPointer last;  // the last that was enqueued. Null: none yet
  std::mt19937_64 random;
};
using StreamPointer = std::shared_ptr<Stream>;

struct Event {
  int device = 0;
  bool is_timed = false;
  WorkPointer recorded;  // null: never
};

struct Device {
  cudaError_t lost = cudaSuccess;
  bool has_context = false;
  bool is_held = false;
  uint64_t used_bytes = 0;
  StreamPointer null_stream;  // made when it is first used
};

// Memory that CUDA knows.
struct Range {
  std::byte* begin = nullptr;
  size_t size = 0;
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = 0;
  std::string_view made_by;  // cudaMalloc ...
};

// Memory of devices that is handed out from one block, and comes back as a whole.
struct Arena {
  std::byte* begin = nullptr;
  size_t size = 0;
  size_t used = 0;
};

struct Fault {
  cudaError_t error = cudaSuccess;
  int after = 0;  // so many calls
  int device = kAnyDevice;
};

struct Machine {
  static Machine& Get();

  // streams.cc. A null handle is the stream of the current device.
  cudaError_t FindStream(cudaStream_t handle, StreamPointer* stream);
  cudaError_t FindStreamForWork(cudaStream_t handle, StreamPointer* stream);
  cudaError_t FindEvent(cudaEvent_t handle, Event** event);
  StreamPointer StartStream(int device);
  WorkPointer Enqueue(Stream* stream, std::function<void()> run);
  // Waits without the lock, then observes.
  void Await(const WorkPointer& work, Lock* lock);
  // Waits only.
  void AwaitDevice(int device, Lock* lock);
  void StopStreams(Lock* lock);
  template <typename Handle>
  Handle NewHandle() {
    return reinterpret_cast<Handle>(next_handle += 16);  // never used twice
  }

  // In memory.cc. Returns false when the memory lies only partly in a range. Memory that is in no
  // range has the type Unregistered.
  bool FindRange(const void* memory, size_t size, Range* range) const;
  cudaError_t Allocate(std::string_view function, cudaMemoryType type, size_t size, void** memory);
  // Frees what `function` has made.
  cudaError_t Free(std::string_view function, void* memory);
  void MakeArena(size_t size);
  std::byte* Place(cudaMemoryType type, size_t size);
  void Unplace(std::byte* memory);
  void FreeAll();
  void CountCopy(cudaMemoryType from, cudaMemoryType to, size_t size);

  // In captures.cc. Does what may be unsafe while a stream is capturing. If a capture forbids that
  // to this thread, the capture is invalidated, and the error is cudaErrorStreamCaptureUnsupported.
  cudaError_t DoUnsafe();

  // In device_api.cc. Makes a context of the current device, as every call does that does more than
  // look.
  void MakeContext(std::string_view function);

  cudaError_t LostDevice(int device) const { return devices[static_cast<size_t>(device)].lost; }
  bool HasDevice(int device) const {
    return device >= 0 && static_cast<size_t>(device) < devices.size();
  }

  std::mutex mutex;
  std::condition_variable changed;

  static constexpr uint64_t kDeviceBytes = uint64_t{1} << 30;
  static constexpr int kComputeCapability = 9;
  static constexpr std::chrono::microseconds kMaxDelay{30};
  std::vector<Device> devices{2};
  uint64_t device_bytes = kDeviceBytes;
  int compute_capability = kComputeCapability;
  std::chrono::microseconds max_delay = kMaxDelay;
  uint64_t seed = 1;
  Kernels kernels = Kernels::kEmulated;

  uintptr_t next_handle = 0;
  std::map<cudaStream_t, StreamPointer> streams;
  std::vector<StreamPointer> running;  // also without a handle
  std::map<cudaEvent_t, Event> events;
  std::map<cudaGraph_t, int> graphs;         // and their device
  std::map<const std::byte*, Range> ranges;  // by their start
  Arena arena;

  std::map<std::string, int, std::less<>> calls;
  std::map<cudaMemcpyKind, uint64_t> copied_bytes;
  std::multimap<std::string, Fault, std::less<>> faults;

 private:
  void Run(const StreamPointer& stream);
  void RunOne(Stream* stream, Lock* lock);
  std::chrono::microseconds Delay(Stream* stream) const;
};

// The current device of this thread.
inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local bool is_stream = false;
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

// Counts the call of a function of CUDA. Returns the fault that is due.
cudaError_t CountCall(Machine* machine, std::string_view function);

// The device drops its work from now on. The first error stays.
void LoseDevice(Machine* machine, int device, cudaError_t error);

// True when a call of this function may be unsafe while a stream is capturing.
bool MayBeUnsafe(std::string_view function);

// What all functions of CUDA do alike. `body` gets the machine and the lock.
template <typename Body>
cudaError_t Call(std::string_view function, const Body& body) {
  const Unseen unseen;
  Machine& machine = Machine::Get();
  Lock lock(machine.mutex);
  cudaError_t error = CountCall(&machine, function);
  machine.MakeContext(function);
  if (error == cudaSuccess && MayBeUnsafe(function)) error = machine.DoUnsafe();
  if (error == cudaSuccess) error = body(machine, lock);
  if (error != cudaSuccess) last_error = error;
  return error;
}

// The same for a function that is about the current device.
template <typename Body>
cudaError_t CallOnDevice(std::string_view function, const Body& body) {
  return Call(function, [&](Machine& machine, Lock& lock) {
    if (machine.devices.empty()) return cudaErrorNoDevice;
    if (!machine.HasDevice(current_device)) return cudaErrorInvalidDevice;
    const cudaError_t lost = machine.LostDevice(current_device);
    return lost == cudaSuccess ? body(machine, lock) : lost;
  });
}

}  // namespace varve::internal::testing::runtime
