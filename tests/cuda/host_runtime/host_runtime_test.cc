// SPDX-License-Identifier: Apache-2.0
//
// What streams order, what waits for what, and how calls fail.
#include "tests/cuda/host_runtime/host_runtime_test.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "cuda/launch.h"

namespace varve::internal::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Bytes = std::vector<char>;

// Returns what is on the device now, read in the stream's order.
Bytes ReadBack(const char* memory, size_t size, cudaStream_t stream) {
  Bytes bytes(size);
  EXPECT_CUDA(cudaMemcpyAsync(bytes.data(), memory, size, cudaMemcpyDeviceToHost, stream));
  return bytes;
}

TEST_F(HostRuntimeTest, AStreamIsOrdered) {
  const cudaStream_t stream = NewStream();
  char* const memory = OnDevice();
  for (int i = 0; i < 50; ++i) EXPECT_CUDA(cudaMemsetAsync(memory, i, kSize, stream));
  EXPECT_THAT(ReadBack(memory, kSize, stream), Each(49));
}

TEST_F(HostRuntimeTest, AStreamWaitsForAnEventAsItWasRecorded) {
  const cudaStream_t writer = NewStream(), reader = NewStream();
  const cudaEvent_t written = NewEvent();
  char* const memory = OnDevice();
  char* const found = Pinned(0);
  EXPECT_CUDA(cudaStreamWaitEvent(reader, written, 0));  // never recorded
  EXPECT_CUDA(cudaStreamSynchronize(reader));
  Gate gate(writer);
  EXPECT_CUDA(cudaMemsetAsync(memory, 1, kSize, writer));
  EXPECT_CUDA(cudaEventRecord(written, writer));
  EXPECT_CUDA(cudaStreamWaitEvent(reader, written, 0));
  EXPECT_CUDA(cudaMemcpyAsync(found, memory, kSize, cudaMemcpyDeviceToHost, reader));
  EXPECT_EQ(cudaStreamQuery(reader), cudaErrorNotReady);
  gate.Open();
  EXPECT_CUDA(cudaStreamSynchronize(reader));
  EXPECT_THAT(Bytes(found, found + kSize), Each(1));
  Gate later(writer);
  EXPECT_CUDA(cudaStreamWaitEvent(reader, written, 0));
  EXPECT_CUDA(cudaStreamSynchronize(reader));
}

TEST_F(HostRuntimeTest, WithoutTheEventAStreamReadsOldBytes) {
  const cudaStream_t writer = NewStream(), reader = NewStream();
  char* const memory = OnDevice();
  EXPECT_CUDA(cudaMemsetAsync(memory, 1, kSize, writer));
  EXPECT_CUDA(cudaStreamSynchronize(writer));
  Gate gate(writer);
  EXPECT_CUDA(cudaMemsetAsync(memory, 2, kSize, writer));
  EXPECT_THAT(ReadBack(memory, kSize, reader), Each(1));
}

TEST_F(HostRuntimeTest, AnEventIsDoneWhenItsStreamHasComeToIt) {
  const cudaStream_t stream = NewStream();
  const cudaEvent_t event = NewEvent();
  EXPECT_CUDA(cudaEventQuery(event));
  EXPECT_CUDA(cudaEventSynchronize(event));
  Gate gate(stream);
  EXPECT_CUDA(cudaEventRecord(event, stream));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  gate.Open();
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_CUDA(cudaEventQuery(event));
}

TEST_F(HostRuntimeTest, OnlyTimedEventsHaveATime) {
  const cudaStream_t stream = NewStream();
  cudaEvent_t start = nullptr, end = nullptr;
  EXPECT_CUDA(cudaEventCreate(&start));
  EXPECT_CUDA(cudaEventCreate(&end));
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventRecord(start, stream));
  EXPECT_CUDA(cudaEventRecord(end, stream));
  EXPECT_CUDA(cudaEventSynchronize(end));
  EXPECT_CUDA(cudaEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, NewEvent()), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventDestroy(start));
  EXPECT_CUDA(cudaEventDestroy(end));
}

TEST_F(HostRuntimeTest, PageableSourcesAreTakenAtOncePinnedOnesLater) {
  const cudaStream_t stream = NewStream();
  char *const first = OnDevice(), *const second = OnDevice();
  Bytes pageable(kSize, 1);
  char* const pinned = Pinned(1);
  Gate gate(stream);
  EXPECT_CUDA(cudaMemcpyAsync(first, pageable.data(), kSize, cudaMemcpyHostToDevice, stream));
  EXPECT_CUDA(cudaMemcpyAsync(second, pinned, kSize, cudaMemcpyHostToDevice, stream));
  pageable.assign(kSize, 2);
  std::memset(pinned, 2, kSize);  // a mistake: it has not been read
  gate.Open();
  EXPECT_THAT(ReadBack(first, kSize, stream), Each(1));
  EXPECT_THAT(ReadBack(second, kSize, stream), Each(2));
}

TEST_F(HostRuntimeTest, CopiesToPinnedMemoryAreNotWaitedFor) {
  const cudaStream_t stream = NewStream();
  char *const memory = OnDevice(), *const pinned = Pinned(0);
  Bytes registered(kSize);
  EXPECT_CUDA(cudaHostRegister(registered.data(), kSize, cudaHostRegisterPortable));
  EXPECT_CUDA(cudaMemsetAsync(memory, 1, kSize, stream));
  Gate gate(stream);
  EXPECT_CUDA(cudaMemcpyAsync(pinned, memory, kSize, cudaMemcpyDeviceToHost, stream));
  EXPECT_CUDA(cudaMemcpyAsync(registered.data(), memory, kSize, cudaMemcpyDefault, stream));
  EXPECT_THAT(Bytes(pinned, pinned + kSize), Each(0));
  gate.Open();
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_THAT(Bytes(pinned, pinned + kSize), Each(1));
  EXPECT_THAT(registered, Each(1));
  EXPECT_CUDA(cudaHostUnregister(registered.data()));
}

// They return while the device's own stream is held up.
TEST_F(HostRuntimeTest, WhatNeedNotBeDoneIsNot) {
  char *const memory = OnDevice(), *const other = OnDevice();
  const Bytes pageable(kSize, 1);
  Gate gate(nullptr);
  EXPECT_CUDA(cudaMemcpy(memory, pageable.data(), kSize, cudaMemcpyHostToDevice));
  EXPECT_CUDA(cudaMemcpy(other, memory, kSize, cudaMemcpyDeviceToDevice));
  EXPECT_CUDA(cudaMemset(memory, 2, kSize));
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  gate.Open();
  Bytes found(kSize);
  EXPECT_CUDA(cudaMemcpy(found.data(), other, kSize, cudaMemcpyDeviceToHost));
  EXPECT_THAT(found, Each(1));
  EXPECT_CUDA(cudaMemcpy(found.data(), memory, kSize, cudaMemcpyDeviceToHost));
  EXPECT_THAT(found, Each(2));
}

TEST_F(HostRuntimeTest, FreeWaitsForTheDeviceDestroyForNothing) {
  cudaStream_t stream = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
  void* memory = nullptr;
  EXPECT_CUDA(cudaMalloc(&memory, kSize));
  std::atomic<bool> has_run = false;
  Gate gate(stream);
  EXPECT_CUDA(Enqueue(stream, [&] { has_run = true; }));
  EXPECT_CUDA(cudaStreamDestroy(stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
  EXPECT_FALSE(has_run);
  std::jthread opener([&] { gate.Open(); });
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_TRUE(has_run);
}

TEST_F(HostRuntimeTest, HostFunctionsRunInOrderAndMustNotCallCuda) {
  const cudaStream_t stream = NewStream();
  static std::atomic<cudaError_t> found;
  found = cudaSuccess;
  Gate gate(stream);
  EXPECT_CUDA(cudaLaunchHostFunc(
      stream, [](void* memory) { found = cudaFree(memory); }, nullptr));
  EXPECT_EQ(found, cudaSuccess);
  gate.Open();
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(found, cudaErrorNotPermitted);
}

TEST_F(HostRuntimeTest, CallsMakeAContextUnlessTheyOnlyLook) {
  SetDevices(4);
  int value = 0;
  EXPECT_CUDA(cudaGetDevice(&value));
  EXPECT_CUDA(cudaGetDeviceCount(&value));
  EXPECT_THAT(Contexts(), IsEmpty());
  EXPECT_CUDA(cudaSetDevice(3));
  EXPECT_THAT(Contexts(), ElementsAre(3));
  cudaEvent_t const event = NewEvent();
  std::jthread{[event] { EXPECT_CUDA(cudaEventQuery(event)); }};  // which starts on device 0
  EXPECT_THAT(Contexts(), ElementsAre(0, 3));
}

TEST_F(HostRuntimeTest, ACopyOverTwoAllocationsFailsAlsoWhenTheyLieSideBySide) {
  PlaceSideBySide(4096);
  void *first = nullptr, *second = nullptr;
  EXPECT_CUDA(cudaMalloc(&first, 512));
  EXPECT_CUDA(cudaMalloc(&second, 512));
  ASSERT_EQ(static_cast<char*>(first) + 512, second);
  Bytes to(1024);
  EXPECT_EQ(cudaMemcpy(to.data(), first, 1024, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaMemcpy(to.data(), second, 512, cudaMemcpyDeviceToHost));
  EXPECT_CUDA(cudaFree(first));
  EXPECT_CUDA(cudaFree(second));
  EXPECT_CUDA(cudaMalloc(&first, 4096));  // elsewhere
  EXPECT_CUDA(cudaFree(first));
}

TEST_F(HostRuntimeTest, ADeviceThatIsHeldBeginsNothing) {
  const cudaStream_t stream = NewStream();
  char* const memory = OnDevice();
  HoldDevice(0, true);
  EXPECT_CUDA(cudaMemsetAsync(memory, 1, kSize, stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaStreamSynchronize(NewStream()));
  HoldDevice(0, false);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
}

TEST_F(HostRuntimeTest, ACallFailsOnTheDeviceThatIsNamed) {
  FailCall("cudaMalloc", cudaErrorMemoryAllocation, 1, 1);
  OnDevice();
  OnDevice();
  EXPECT_CUDA(cudaSetDevice(1));
  OnDevice();
  void* none = nullptr;
  EXPECT_EQ(cudaMalloc(&none, kSize), cudaErrorMemoryAllocation);
  OnDevice();
}

TEST_F(HostRuntimeTest, ACallFailsOnceAndDoesNothing) {
  FailCall("cudaMalloc", cudaErrorMemoryAllocation, 1);
  char* const memory = OnDevice();
  void* other = nullptr;
  EXPECT_EQ(cudaMalloc(&other, kSize), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_THAT(Leaks(), ElementsAre("cudaMalloc: 1000 bytes of device 0"));
  OnDevice();
  EXPECT_EQ(NumCalls("cudaMalloc"), 3);
  FailCall("LaunchCopies", cudaErrorLaunchFailure);
  const cudaStream_t stream = NewStream();
  const gpu::CopyBatch batch = {nullptr, 0, reinterpret_cast<uint32_t*>(memory)};
  EXPECT_EQ(gpu::LaunchCopies(batch, kProcessors, stream), cudaErrorLaunchFailure);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorLaunchFailure), "cudaErrorLaunchFailure");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorLaunchFailure), "unspecified launch failure");
}

TEST_F(HostRuntimeTest, ALostDeviceDropsItsWorkAndFailsEveryCall) {
  const cudaStream_t stream = NewStream();
  const cudaEvent_t event = NewEvent();
  char *const memory = OnDevice(), *const pinned = Pinned(0);
  Gate gate(stream);
  EXPECT_CUDA(cudaMemcpyAsync(pinned, memory, kSize, cudaMemcpyDeviceToHost, stream));
  EXPECT_CUDA(cudaEventRecord(event, stream));
  LoseDevice(0);
  gate.Open();
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMemsetAsync(memory, 0, kSize, stream), cudaErrorLaunchFailure);
  EXPECT_THAT(Bytes(pinned, pinned + kSize), Each(0));
  void* none = nullptr;
  EXPECT_EQ(cudaMalloc(&none, kSize), cudaErrorLaunchFailure);
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaMalloc(&none, kSize));
  EXPECT_CUDA(cudaFree(none));
}

// A kernel on the memory of another device, or of the host, is an illegal address.
TEST_F(HostRuntimeTest, AKernelIsLostOnMemoryThatIsElsewhere) {
  const cudaStream_t stream = NewStream();
  char* const memory = OnDevice();
  EXPECT_CUDA(Enqueue(stream, [=] { EXPECT_TRUE(MayTouch(memory, kSize)); }));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(Enqueue(stream, [=] { EXPECT_FALSE(MayTouch(memory, kSize + 1)); }));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_CUDA(cudaSetDevice(1));
  const cudaStream_t other = NewStream();
  EXPECT_CUDA(Enqueue(other, [=] { EXPECT_FALSE(MayTouch(memory, kSize)); }));
  EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorIllegalAddress);
}

TEST_F(HostRuntimeTest, CopiesStayWithinMemoryOfTheirKind) {
  char *const memory = OnDevice(), *const pinned = Pinned(0);
  Bytes pageable(kSize);
  const auto copy = [](void* to, const void* from, cudaMemcpyKind kind, size_t size = kSize) {
    return cudaMemcpy(to, from, size, kind);
  };
  EXPECT_CUDA(copy(memory, pinned, cudaMemcpyHostToDevice));
  EXPECT_CUDA(copy(pinned, pageable.data(), cudaMemcpyHostToHost));
  EXPECT_CUDA(copy(nullptr, nullptr, cudaMemcpyHostToDevice, 0));
  EXPECT_EQ(copy(pinned, pageable.data(), cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(memory, pinned, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(pinned, memory + 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(memory, memory - 1, cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(copy(memory, pinned, static_cast<cudaMemcpyKind>(7)), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemset(memory + 1, 0, kSize), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(pageable.data(), 0, kSize), cudaErrorInvalidValue);
}

TEST_F(HostRuntimeTest, StreamsAndEventsAreOfADevice) {
  const cudaStream_t stream = NewStream();
  char* const memory = OnDevice();
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_EQ(cudaMemsetAsync(memory, 0, kSize, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(Launch("kernel", stream, [] {}), cudaErrorInvalidResourceHandle);
  const cudaEvent_t event = NewEvent();
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventRecord(event, NewStream()));
  EXPECT_CUDA(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  int device = -1;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 1);
}

TEST_F(HostRuntimeTest, MemoryHasAttributes) {
  EXPECT_CUDA(cudaSetDevice(1));
  void* managed = nullptr;
  EXPECT_CUDA(cudaMallocManaged(&managed, kSize));
  const char pageable = 0;
  const auto expect = [](const void* memory, cudaMemoryType type, int device) {
    cudaPointerAttributes found{};
    EXPECT_CUDA(cudaPointerGetAttributes(&found, memory));
    EXPECT_EQ(found.type, type);
    EXPECT_EQ(found.device, device);
  };
  expect(OnDevice() + kSize - 1, cudaMemoryTypeDevice, 1);
  expect(Pinned(0), cudaMemoryTypeHost, 1);
  expect(managed, cudaMemoryTypeManaged, 1);
  expect(&pageable, cudaMemoryTypeUnregistered, cudaInvalidDeviceId);
  EXPECT_CUDA(cudaFree(managed));
}

TEST_F(HostRuntimeTest, MemoryEnds) {
  SetDeviceMemory(1500);
  size_t available = 0, total = 0;
  OnDevice();
  EXPECT_CUDA(cudaMemGetInfo(&available, &total));
  EXPECT_EQ(available, 500u);
  EXPECT_EQ(total, 1500u);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 501), cudaErrorMemoryAllocation);
  EXPECT_CUDA(cudaMalloc(&memory, 0));
  EXPECT_EQ(memory, nullptr);
  EXPECT_CUDA(cudaMalloc(&memory, 500));
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
}

TEST_F(HostRuntimeTest, RegisteringIsForWhatIsNot) {
  char* const pinned = Pinned(0);
  Bytes bytes(kSize);
  EXPECT_EQ(cudaHostRegister(pinned + 10, 10, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_CUDA(cudaHostRegister(bytes.data() + 10, 10, 0));
  EXPECT_EQ(cudaHostRegister(bytes.data(), 11, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostUnregister(bytes.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaFreeHost(bytes.data() + 10), cudaErrorInvalidValue);
  EXPECT_THAT(Leaks(), ::testing::Contains("cudaHostRegister: 10 bytes of device 0"));
  EXPECT_CUDA(cudaHostUnregister(bytes.data() + 10));
}

TEST_F(HostRuntimeTest, NoDevices) {
  SetDevices(0);
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorNoDevice);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, kSize), cudaErrorNoDevice);
}

#ifdef __SANITIZE_THREAD__
// A wait that is missing is a race, however late the reader comes.
class HostRuntimeDeathTest : public HostRuntimeTest {
 protected:
  // Runs it in a process of its own. Expects TSan's exit code.
  template <typename Run>
  void ExpectRace(const Run& run) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto run_and_exit = [&] {
      run();
      AwaitIdle();
      std::exit(0);
    };
    EXPECT_EXIT(run_and_exit(), ::testing::ExitedWithCode(66), "data race");
  }
};

TEST_F(HostRuntimeDeathTest, TheHostReadsWithoutWaiting) {
  ExpectRace([this] {
    const cudaStream_t stream = NewStream();
    char *const memory = OnDevice(), *const pinned = Pinned(0);
    EXPECT_CUDA(cudaMemcpyAsync(pinned, memory, kSize, cudaMemcpyDeviceToHost, stream));
    AwaitIdle();
    // None of these waits.
    EXPECT_CUDA(cudaMemsetAsync(memory, 0, kSize, stream));
    EXPECT_CUDA(cudaStreamSynchronize(NewStream()));
    OnDevice();
    EXPECT_EQ(pinned[0], pinned[1]);
  });
}

TEST_F(HostRuntimeDeathTest, AStreamReadsWithoutTheEvent) {
  ExpectRace([this] {
    const cudaStream_t writer = NewStream(), reader = NewStream();
    char *const memory = OnDevice(), *const pinned = Pinned(0);
    EXPECT_CUDA(cudaMemsetAsync(memory, 1, kSize, writer));
    AwaitIdle();
    EXPECT_CUDA(cudaMemcpyAsync(pinned, memory, kSize, cudaMemcpyDeviceToHost, reader));
  });
}

TEST_F(HostRuntimeDeathTest, AnEventOrdersOnlyWhatIsBeforeIt) {
  ExpectRace([this] {
    const cudaStream_t writer = NewStream(), reader = NewStream();
    const cudaEvent_t event = NewEvent();
    char *const memory = OnDevice(), *const pinned = Pinned(0);
    EXPECT_CUDA(cudaEventRecord(event, writer));
    EXPECT_CUDA(cudaMemsetAsync(memory, 1, kSize, writer));
    AwaitIdle();
    EXPECT_CUDA(cudaStreamWaitEvent(reader, event, 0));
    EXPECT_CUDA(cudaMemcpyAsync(pinned, memory, kSize, cudaMemcpyDeviceToHost, reader));
  });
}

TEST_F(HostRuntimeDeathTest, AThreadWritesWhatAnotherHasEnqueued) {
  ExpectRace([this] {
    const cudaStream_t stream = NewStream();
    char *const memory = OnDevice(), *const pinned = Pinned(0);
    EXPECT_CUDA(cudaMemcpyAsync(memory, pinned, kSize, cudaMemcpyHostToDevice, stream));
    AwaitIdle();
    pinned[0] = 1;
  });
}
#endif

}  // namespace
}  // namespace varve::internal::testing
