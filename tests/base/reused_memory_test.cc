// SPDX-License-Identifier: Apache-2.0
#include "base/reused_memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace varve::internal {

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSizes[] = {0,       1,       63,          64,           100'000, 128 << 10,
                             300'000, 900'000, kMiB - 1000, kMiB + 1'000, 3 * kMiB};

// From the start on malloc keeps no large buffer itself.
const int kFreesToSystem = mallopt(M_MMAP_THRESHOLD, 128 << 10);

TEST(ReusedMemoryTest, BuffersAreAlignedAndApart) {
  std::vector<std::pair<std::byte*, size_t>> taken;
  for (int round = 0; round < 3; ++round) {
    for (const size_t size : kSizes) {
      auto* const memory = static_cast<std::byte*>(TakeMemory(size));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
      std::fill_n(memory, size, std::byte(taken.size()));
      taken.emplace_back(memory, size);
    }
    for (size_t i = 0; i < taken.size(); ++i) {
      const auto& [memory, size] = taken[i];
      EXPECT_TRUE(
          std::all_of(memory, memory + size, [&](std::byte b) { return b == std::byte(i); }));
      GiveMemory(memory);
    }
    taken.clear();
  }
  GiveMemory(nullptr);
}

TEST(ReusedMemoryTest, WhatWasGivenBackIsTakenAgain) {
  if (!KeepsMemory()) GTEST_SKIP() << "not under this sanitizer";
  ASSERT_EQ(kFreesToSystem, 1);
  auto* const first = static_cast<std::byte*>(TakeMemory(900'000));
  std::fill_n(first, 900'000, std::byte{7});
  GiveMemory(first);
  auto* const second = static_cast<std::byte*>(TakeMemory(kMiB));
  EXPECT_EQ(second[500'000], std::byte{7});
  GiveMemory(second);
}

#if !defined(__SANITIZE_THREAD__)  // it counts memory in its own way
TEST(ReusedMemoryTest, LittleIsKept) {
  if (!KeepsMemory()) GTEST_SKIP() << "not under this sanitizer";
  const auto used = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = used();
  for (const size_t size : {kMiB, 4 * kMiB}) {
    std::vector<void*> taken;
    for (int i = 0; i < 100; ++i) taken.push_back(TakeMemory(size));
    EXPECT_GT(used() - before, 70 * kMiB);
    for (void* const memory : taken) GiveMemory(memory);
    EXPECT_LE(used() - std::min(before, used()), 21 * kMiB);
  }
}
#endif

TEST(ReusedMemoryTest, ThreadsNeverShareABuffer) {
  std::vector<std::thread> threads;
  for (int id = 0; id < 6; ++id) {
    threads.emplace_back([id] {
      for (int i = 0; i < 3000; ++i) {
        const size_t size = (size_t{128} << 10) + static_cast<size_t>((i * 7919 + id) % 1'000'000);
        auto* const memory = static_cast<std::byte*>(TakeMemory(size));
        for (const size_t at : {size_t{0}, size / 2, size - 1}) memory[at] = std::byte(id);
        std::this_thread::yield();
        for (const size_t at : {size_t{0}, size / 2, size - 1}) {
          EXPECT_EQ(memory[at], std::byte(id));
        }
        GiveMemory(memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ReusedBufferTest, KeepsItsMemoryWhenItShrinksAndMoves) {
  ReusedBuffer buffer;
  EXPECT_TRUE(buffer.bytes().empty());
  std::byte* const memory = buffer.Resize(kMiB).data();
  EXPECT_EQ(buffer.Resize(10).data(), memory);
  EXPECT_EQ(buffer.bytes().size(), 10u);
  ReusedBuffer other = std::move(buffer);
  EXPECT_EQ(other.bytes().data(), memory);
  EXPECT_EQ(other.Resize(kMiB).data(), memory);
  std::swap(buffer, other);
  EXPECT_EQ(buffer.bytes().data(), memory);
  EXPECT_EQ(buffer.Resize(2 * kMiB).size(), 2 * kMiB);
}

}  // namespace
}  // namespace varve::internal
