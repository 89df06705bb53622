// SPDX-License-Identifier: Apache-2.0
//
// A trainer whose tensors are on a device, and its checkpointer. On a GPU, where there is one, and
// on the CUDA runtime of tests/cuda/host_runtime.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/resources.h"
#include "tests/trainer_hooks/test_state.h"
#include "varve/async_checkpointer.h"
#include "varve/cuda.h"

namespace varve::internal::testing {

using gpu::AllocateOnDevice;
using gpu::DeviceBuffer;

#define VARVE_ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)

// A state in the memory of one device, with what it holds.
class DeviceState {
 public:
  DeviceState(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

  // `offset`: bytes between a place that is well aligned and the tensor.
  void Add(TestTensor tensor, size_t offset = 0) {
    const gpu::DeviceScope scope(device_);
    auto memory = AllocateOnDevice<std::byte>(std::max<size_t>(offset + tensor.bytes.size(), 1));
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    state_.tensors.push_back({{.name = tensor.name,
                               .dtype = tensor.dtype,
                               .shape = tensor.shape,
                               .derived_from = tensor.derived_from},
                              memory->data() + offset,
                              device_});
    memory_.push_back(*std::move(memory));
    values_.push_back(std::move(tensor));
    Upload(values_.size() - 1);
  }
  void AddOnHost(TestTensor tensor) {
    host_.push_back(std::move(tensor));
    TestTensor& kept = host_.back();
    state_.tensors.push_back(
        {{.name = kept.name, .dtype = kept.dtype, .shape = kept.shape}, kept.bytes.data()});
  }
  // Acts as a kernel of the trainer's stream would: it comes after everything that the stream has.
  void Set(size_t i, std::vector<std::byte> bytes) {
    values_[i].bytes = std::move(bytes);
    Upload(i);
  }
  void Change(size_t i, size_t at) {
    values_[i].bytes[at] ^= std::byte{1};
    Upload(i);
  }
  void Clear() {
    for (size_t i = 0; i < values_.size(); ++i) Set(i, std::vector<std::byte>(Size(i)));
  }

  // From now on the trainer writes its tensors by this in place of cudaMemcpyAsync. It must have
  // the stream's order, too.
  using Write = std::function<cudaError_t(void* to, const std::vector<std::byte>& bytes)>;
  void UseWrite(Write write) { write_ = std::move(write); }
  // From now on the trainer works in this stream.
  void UseStream(cudaStream_t stream) { stream_ = stream; }

  TrainingState& state() { return state_; }
  size_t size() const { return values_.size(); }  // tensors on the device
  size_t Size(size_t i) const { return values_[i].bytes.size(); }
  // Returns the values that the tensors should hold now.
  std::vector<TestTensor> Values() const {
    std::vector<TestTensor> values(values_.begin(), values_.end());
    values.insert(values.end(), host_.begin(), host_.end());
    return values;
  }
  // Returns what a tensor holds on the device.
  std::vector<std::byte> Download(size_t i) const {
    std::vector<std::byte> bytes(Size(i));
    const gpu::DeviceScope scope(device_);
    EXPECT_EQ(cudaMemcpyAsync(bytes.data(), state_.tensors[i].data, bytes.size(),
                              cudaMemcpyDeviceToHost, stream_),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return bytes;
  }

 private:
  // CUDA has copied what is not pinned when it returns.
  void Upload(size_t i) {
    const gpu::DeviceScope scope(device_);
    if (write_) {
      EXPECT_EQ(write_(state_.tensors[i].data, values_[i].bytes), cudaSuccess);
      return;
    }
    EXPECT_EQ(cudaMemcpyAsync(state_.tensors[i].data, values_[i].bytes.data(), Size(i),
                              cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
  }

  const int device_;
  cudaStream_t stream_;
  Write write_;  // none: cudaMemcpyAsync
  TrainingState state_;
  std::vector<DeviceBuffer<std::byte>> memory_;
  std::vector<TestTensor> values_;
  std::deque<TestTensor> host_;
};

class DeviceTest : public StoreTest {
 protected:
  void SetUp() override {
    int devices = 0;
    const Status status = gpu::ToStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (!status.ok() || devices == 0) {
      GTEST_SKIP() << "no GPU here: " << (status.ok() ? "no device" : status.message());
    }
    num_devices_ = devices;
    StoreTest::SetUp();
    store_.reset();
    auto stream = gpu::MakeStream();
    VARVE_ASSERT_OK(stream.status());
    stream_ = *std::move(stream);
  }
  void TearDown() override {
    if (num_devices_ == 0) return;
    if (ckpt_ != nullptr) ckpt_->Close().IgnoreError();
    ckpt_.reset();
    source_.reset();
    (void)cudaStreamSynchronize(stream_.get());  // a test may have lost the device
    stream_.reset();
    StoreTest::TearDown();
  }

  void MakeSource(uint64_t staging_bytes = uint64_t{256} << 20,
                  uint64_t digest_part_bytes = uint64_t{1} << 30) {
    auto source = CudaTensorSource::Create({.streams = {{0, stream_.get()}},
                                            .staging_bytes = staging_bytes,
                                            .digest_part_bytes = digest_part_bytes,
                                            .bounce_bytes = uint64_t{32} << 20});
    VARVE_ASSERT_OK(source.status());
    source_ = *std::move(source);
  }
  void Open(CheckpointerOptions options = {}) {
    if (source_ == nullptr) MakeSource();
    options.devices = source_;
    auto opened = AsyncCheckpointer::Open(path(), options);
    VARVE_ASSERT_OK(opened.status());
    ckpt_ = *std::move(opened);
  }
  void Begin(uint64_t step, const TrainingState& state) {
    const auto begun = ckpt_->BeginSave(step, state);
    VARVE_ASSERT_OK(begun.status());
    ASSERT_TRUE(*begun);
  }
  void Save(uint64_t step, const TrainingState& state) {
    const auto saved = ckpt_->Save(step, state);
    VARVE_ASSERT_OK(saved.status());
    ASSERT_TRUE(*saved);
  }
  void ExpectSaved(uint64_t step, const std::vector<TestTensor>& tensors) {
    VARVE_ASSERT_OK(ckpt_->Wait());
    ExpectHolds(ckpt_->store(), step, tensors);
  }
  // A step is loaded into the state, whatever that held.
  void ExpectRestores(uint64_t step, DeviceState* state) {
    const std::vector<TestTensor> values = state->Values();
    state->Clear();
    VARVE_ASSERT_OK(ckpt_->Restore(std::to_string(step), {}, &state->state()).status());
    for (size_t i = 0; i < state->size(); ++i) {
      EXPECT_TRUE(SameBytes(state->Download(i), values[i].bytes)) << values[i].name;
    }
  }

  int num_devices_ = 0;
  gpu::Stream stream_;
  std::shared_ptr<CudaTensorSource> source_;
  std::unique_ptr<AsyncCheckpointer> ckpt_;
};

}  // namespace varve::internal::testing
