// SPDX-License-Identifier: Apache-2.0
//
// Chunks for tests of kernels, and places for their copies.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <span>

#include "cuda/device_chunk.h"

namespace varve::internal::gpu {

// Memory that starts `offset` behind a multiple of 16 and ends with its allocation.
class KernelMemory {
 public:
  KernelMemory(uint64_t size, size_t offset)
      : memory_(new (std::align_val_t(16)) std::byte[size + offset]),
        bytes_(memory_.get() + offset, size) {}
  std::span<std::byte> get() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t(16)); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::span<std::byte> bytes_;
};

// Random bytes.
class Bytes {
 public:
  Bytes(uint64_t size, size_t offset) : memory_(size, offset) {
    std::mt19937_64 random(size * 16 + offset);
    for (std::byte& byte : memory_.get()) byte = static_cast<std::byte>(random());
  }
  std::span<const std::byte> get() const { return memory_.get(); }
  DeviceChunk chunk(std::byte* copy = nullptr) const { return {get().data(), get().size(), copy}; }

 private:
  KernelMemory memory_;
};

// A place for a copy of `bytes`, with bytes before and behind it that nobody may change.
class CopyOf {
 public:
  explicit CopyOf(const Bytes& bytes)
      : bytes_(bytes), memory_(bytes.get().size() + 2 * kBorder, 0) {
    std::ranges::fill(memory_.get(), kUnchanged);
  }
  std::byte* data() const { return memory_.get().data() + kBorder; }
  DeviceChunk chunk() const { return bytes_.chunk(data()); }

  // The bytes before `from` have not been copied.
  void ExpectCopied(uint64_t from = 0) const {
    const std::span<const std::byte> all = memory_.get(), source = bytes_.get();
    const auto is_unchanged = [](std::byte byte) { return byte == kUnchanged; };
    EXPECT_TRUE(std::ranges::all_of(all.first(kBorder + from), is_unchanged)) << "before " << from;
    EXPECT_TRUE(std::ranges::all_of(all.last(kBorder), is_unchanged)) << "behind";
    EXPECT_TRUE(std::ranges::equal(all.subspan(kBorder + from, source.size() - from),
                                   source.subspan(from)));
  }

 private:
  static constexpr size_t kBorder = 64;
  static constexpr std::byte kUnchanged{0xc3};
  const Bytes& bytes_;
  KernelMemory memory_;
};

}  // namespace varve::internal::gpu
