// SPDX-License-Identifier: Apache-2.0
//
// What tests on the host's runtime share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <utility>
#include <vector>

#include "tests/cuda/host_runtime/host_runtime.h"

#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)

namespace varve::internal::testing {

// Holds up a stream until it is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    EXPECT_CUDA(Enqueue(stream, [opened = opened_.get_future().share()] { opened.wait(); }));
  }
  ~Gate() { Open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void Open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

// Streams, events and memory that go with the test, after which nothing may be left.
class HostRuntimeTest : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 1000;

  void TearDown() override {
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    for (const cudaStream_t stream : streams_) (void)cudaStreamDestroy(stream);
    for (void* const memory : device_) (void)cudaFree(memory);
    AwaitIdle();
    for (void* const memory : pinned_) (void)cudaFreeHost(memory);
    EXPECT_THAT(Leaks(), ::testing::IsEmpty());
    Reset();
  }

  cudaStream_t NewStream() {
    streams_.emplace_back();
    EXPECT_CUDA(cudaStreamCreateWithFlags(&streams_.back(), cudaStreamNonBlocking));
    return streams_.back();
  }
  cudaEvent_t NewEvent() {
    events_.emplace_back();
    EXPECT_CUDA(cudaEventCreateWithFlags(&events_.back(), cudaEventDisableTiming));
    return events_.back();
  }
  char* OnDevice() {
    device_.emplace_back();
    EXPECT_CUDA(cudaMalloc(&device_.back(), kSize));
    return static_cast<char*>(device_.back());
  }
  char* Pinned(char value) {
    pinned_.emplace_back();
    EXPECT_CUDA(cudaHostAlloc(&pinned_.back(), kSize, cudaHostAllocPortable));
    std::memset(pinned_.back(), value, kSize);
    return static_cast<char*>(pinned_.back());
  }

 private:
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::vector<void*> device_, pinned_;
};

}  // namespace varve::internal::testing
