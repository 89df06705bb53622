// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime on the CPU, for tests of the host's side of cuda/. A stream is a thread with a
// queue. Memory of a device is the host's, but copies check what lies where. Kernels are functions
// that tests, or launch_emulated.cc, enqueue. Where CUDA leaves something open, this does what is
// hardest on the code under test:
//
//   - Nothing waits for more than CUDA's documentation says, and TSan sees no more order than that
//     (order.h). A missing wait is a race, or, where it matters, old bytes.
//   - Work is delayed at random.
//   - cudaMemcpy from pageable memory, cudaMemcpy within a device and cudaMemset may return before
//     they are done, as CUDA's do. Non-blocking streams do not wait for them.
//   - Memory is full of junk when it is allocated.
//   - A kernel or a memset needs the stream's device to be the current one, as in CUDA.
//   - All calls except those that enqueue or look may be unsafe while a stream is capturing. A call
//     on a thread to which a capture forbids them breaks the capture (captures.cc).
//   - Any call except those that only look makes a context of the thread's current device.
//
// All streams are cudaStreamNonBlocking. The stream nullptr is one of the current device, which
// orders nothing but itself. A stream that is capturing takes no work.
//
// Thread rule: any thread. No other call may run during Reset and SetDevices.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace varve::internal::testing {

inline constexpr int kProcessors = 4;  // of each device

// Restores the start of the process: waiting work is dropped, everything is freed, no device is
// lost, no call fails, and none has been counted.
void Reset();

void SetDevices(int count);            // 2 unless said otherwise
void SetDeviceMemory(uint64_t bytes);  // of each device, 1 GiB by default
void SetComputeCapability(int major);  // of each device, 9 by default
// Delays work at random, up to `max`. The delays of each stream follow from the seed.
void SetDelay(std::chrono::microseconds max, uint64_t seed);

// From now on cudaMalloc takes memory from one block of so many bytes. If sizes are multiples of
// 256, allocations lie next to each other, as CUDA's may. No byte is used twice. Call it once in a
// test.
void PlaceSideBySide(uint64_t bytes);

// The call of this function (cudaMalloc, LaunchDigests ...) after the next `after` ones fails, and
// does nothing. Only calls of threads whose current device is `device` count. cudaSuccess cancels
// an earlier fault.
inline constexpr int kAnyDevice = -1;
void FailCall(std::string_view function, cudaError_t error, int after = 0, int device = kAnyDevice);
int NumCalls(std::string_view function);
// Returns the bytes of all copies from one of these to the other. Managed memory is a device's.
uint64_t CopiedBytes(cudaMemcpyKind kind);

// While the device is held, it starts none of its work.
void HoldDevice(int device, bool is_held);

// Waits until no stream has work, which is no order for TSan, as CUDA gives none by it.
void AwaitIdle();

// From now on the device drops its work, and every call about it fails with `error`. Calls that
// wait fail, too, and return when nothing that they wait for runs any more. Calls that free memory
// still free it.
void LoseDevice(int device, cudaError_t error = cudaErrorLaunchFailure);

// Returns the devices that have a context. On a real device it takes half a gigabyte.
std::vector<int> Contexts();

// Returns what was allocated, registered or created and not given back, such as "cudaMalloc: 300
// bytes of device 1".
std::vector<std::string> Leaks();

// A kernel. It must not call CUDA.
cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work);
// The same, under the name of a function of cuda/launch.h.
cudaError_t Launch(std::string_view name, cudaStream_t stream, std::function<void()> work);
// Within one: whether kernels of the device that runs it may touch this memory. If not, the
// device is lost, as by an illegal address.
bool MayTouch(const void* memory, size_t size);

// How LaunchDigests and LaunchCopies of cuda/launch.h compute. By default the kernels run, thread
// by thread. With kReference the codec and memcpy compute the same. That is for large inputs
// (kernels reach 30 MB/s under ASan), and always under TSan, which cannot follow the threads of
// kernels.
enum class Kernels { kEmulated, kReference };
void UseKernels(Kernels kernels);
// The blocks of the grid of the last LaunchDigests.
uint32_t LastDigestBlocks();
bool LastDigestWasWide();
Kernels UsedKernels();

}  // namespace varve::internal::testing
