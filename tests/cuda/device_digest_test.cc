// SPDX-License-Identifier: Apache-2.0
//
// Needs a GPU. Where there is none, it is skipped and says so.
#include "cuda/device_digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cuda/resources.h"

namespace varve::internal::gpu {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 0x123456789abcdef;

class DeviceDigestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const Status status = ToStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (!status.ok() || devices == 0) {
      GTEST_SKIP() << "no GPU here: " << (status.ok() ? "no device" : status.message());
    }
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    stream_ = stream;
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  // Random bytes here and on the device.
  void Fill(size_t size) {
    std::mt19937_64 random(size);
    bytes_.resize(size);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
    auto memory = AllocateOnDevice<std::byte>(size);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    memory_ = *std::move(memory);
    ASSERT_EQ(cudaMemcpyAsync(memory_.data(), bytes_.data(), size, cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
  }
  void Cut(size_t begin, size_t size) {
    chunks_.push_back({memory_.data() + begin, size});
    expected_.push_back(ComputeDigest(kSeed, std::span(bytes_).subspan(begin, size)));
  }
  void ExpectDigests() {
    const auto digester = DeviceDigester::Create(0, chunks_.size());
    ASSERT_TRUE(digester.ok()) << digester.status().ToString();
    for (int round = 0; round < 2; ++round) {
      const Status enqueued = (*digester)->Enqueue(kSeed, chunks_, stream_);
      ASSERT_TRUE(enqueued.ok()) << enqueued.ToString();
      const auto found = (*digester)->Take();
      ASSERT_TRUE(found.ok()) << found.status().ToString();
      ASSERT_EQ(found->size(), expected_.size());
      for (size_t i = 0; i < expected_.size(); ++i) {
        EXPECT_EQ((*found)[i], expected_[i])
            << "chunk " << i << ", " << chunks_[i].bytes << " bytes";
      }
    }
  }

  cudaStream_t stream_ = nullptr;
  std::vector<std::byte> bytes_;
  DeviceBuffer<std::byte> memory_;
  std::vector<DeviceChunk> chunks_;
  std::vector<Digest> expected_;
};

TEST_F(DeviceDigestTest, FewChunksOfAnySizeAndAlignment) {
  Fill(32 << 20);
  for (size_t i = 0; i < 64; ++i) Cut(i * 300'001 + i % 16, kMinDigestBytes + i * 3'001 + i % 7);
  Cut(0, bytes_.size());
  Cut(1, bytes_.size() - 1);
  ExpectDigests();
}

TEST_F(DeviceDigestTest, ManyChunks) {
  Fill(64 << 20);
  for (size_t i = 0; i < 20'000; ++i) Cut(i * 3'001 + i % 16, kMinDigestBytes + i % 3'000);
  ExpectDigests();
}

TEST_F(DeviceDigestTest, NoChunks) { ExpectDigests(); }

TEST_F(DeviceDigestTest, WhatCannotBeIsSaid) {
  Fill(4096);
  const auto digester = *DeviceDigester::Create(0, 2);
  const auto enqueue = [&](const std::vector<DeviceChunk>& chunks) {
    return digester->Enqueue(kSeed, chunks, stream_).ToString();
  };
  EXPECT_THAT(enqueue({{memory_.data(), 300}, {memory_.data(), 240}}),
              HasSubstr("chunk 1 has 240 bytes, expected at least 241"));
  EXPECT_THAT(enqueue(std::vector<DeviceChunk>(3, {memory_.data(), 300})),
              HasSubstr("a batch of 3 chunks, expected at most 2"));
  EXPECT_EQ(enqueue({{memory_.data(), 300}}), "ok");
  EXPECT_THAT(enqueue({{memory_.data(), 300}}), HasSubstr("has not been taken"));
  EXPECT_TRUE(digester->Take().ok());
  EXPECT_THAT(DeviceDigester::Create(99, 2).status().ToString(), HasSubstr("CUDA: cudaSetDevice"));
}

}  // namespace
}  // namespace varve::internal::gpu
