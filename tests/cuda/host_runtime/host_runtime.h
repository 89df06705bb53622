// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime on the CPU, for tests of the host's side of cuda/. A stream is a thread with a
// queue; memory of a device is the host's, but copies check what lies where; kernels are functions
// that tests, or launch_emulated.cc, enqueue. Where CUDA leaves something open, this does what
// is hardest on the code under test:
//
//   - nothing waits for more than CUDA's documentation says, and TSan sees no more order than that
//     (order.h): a wait that is missing is a race, or, where it matters, old bytes;
//   - work is held up at random;
//   - cudaMemcpy from pageable memory, cudaMemcpy within a device and cudaMemset may return before
//     they are done, as CUDA's do, and streams that are non-blocking do not wait for them;
//   - memory is full of junk when it is allocated;
//   - a kernel or a memset wants the stream's device to be the current one, as CUDA's;
//   - all calls but those that enqueue or look may be unsafe while a stream is capturing: a thread
//     to which a capture forbids such calls breaks it by one (captures.cc);
//   - any call makes a context of the thread's current device, but those that only look.
//
// All streams are cudaStreamNonBlocking; that of nullptr is one of the current device, which
// orders nothing but itself. A stream that is capturing takes no work.
//
// Thread rule: any thread, but Reset and SetDevices, during which nothing else may be called.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace varve::testing {

inline constexpr int kProcessors = 4;  // of each device

// As at the beginning of the process: work that waits is dropped, all is freed, no device is lost,
// no call fails, none has been counted.
void Reset();

void SetDevices(int count);            // 2 unless said otherwise
void SetDeviceMemory(uint64_t bytes);  // of each; 1 GiB unless said otherwise
// How long work is held up: at random, up to `max`; the same for the same seed, stream by stream.
void SetDelay(std::chrono::microseconds max, uint64_t seed);

// From now on cudaMalloc takes memory from one block of so many bytes, each next to the one before
// where sizes are multiples of 256, as CUDA's may lie; none of it is used twice. Once in a test.
void PlaceSideBySide(uint64_t bytes);

// The call of this function (cudaMalloc, LaunchDigests ...) after the next `after` ones fails, and
// does nothing. Of those that threads make whose current device is `device`. cudaSuccess: none
// will, whatever was said before.
inline constexpr int kAnyDevice = -1;
void FailCall(std::string_view function, cudaError_t error, int after = 0, int device = kAnyDevice);
int NumCalls(std::string_view function);

// The device begins none of its work as long as it is held.
void HoldDevice(int device, bool is_held);

// Waits until no stream has work, which is no order for TSan, as CUDA gives none by it.
void AwaitIdle();

// From now on the device drops its work, and every call that concerns it fails with `error`, also
// those that wait; they return when nothing of what they wait for runs any more. What frees, frees.
void LoseDevice(int device, cudaError_t error = cudaErrorLaunchFailure);

// The devices of which there is a context, which takes half a gigabyte of theirs.
std::vector<int> Contexts();

// What has been allocated, registered or created, and not given back; "cudaMalloc: 300 bytes of
// device 1".
std::vector<std::string> Leaks();

// A kernel. It must not call CUDA.
cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work);
// The same, as the function `name` of cuda/launch.h.
cudaError_t Launch(std::string_view name, cudaStream_t stream, std::function<void()> work);
// Within one: whether kernels of the device that runs it may touch this memory. If not, the
// device is lost, as by an illegal address.
bool MayTouch(const void* memory, size_t size);

// How LaunchDigests and LaunchCopies of cuda/launch.h compute: by the kernels, thread by thread, as
// they do unless said otherwise; or the same by the codec and memcpy, for what is too large (30
// MB/s under ASan), and always under TSan, which cannot follow the threads of kernels.
enum class Kernels { kEmulated, kReference };
void UseKernels(Kernels kernels);
Kernels UsedKernels();

}  // namespace varve::testing
