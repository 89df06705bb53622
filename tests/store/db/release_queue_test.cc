// SPDX-License-Identifier: Apache-2.0
//
// The queue of a forecast against a map, with so little memory that most of it lies in the file.
#include "store/db/release_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace varve::internal {

namespace {

using Counts = std::map<std::pair<uint64_t, uint32_t>, uint64_t>;

// Takes the highest out of both, and returns its address.
std::pair<uint64_t, uint32_t> PopBoth(ReleaseQueue* queue, Counts* expected) {
  const auto highest = std::prev(expected->end());
  const auto released = *queue->Pop();
  EXPECT_TRUE(released.has_value());
  if (!released.has_value()) return highest->first;
  EXPECT_EQ(released->what.save_id, highest->first.first);
  EXPECT_EQ(released->what.number, highest->first.second);
  EXPECT_EQ(released->what.bytes, released->what.number + 7);
  EXPECT_EQ(released->times, highest->second);
  const auto address = highest->first;
  expected->erase(highest);
  return address;
}

void CompareWithAMap(size_t max_in_memory, uint64_t seed) {
  SCOPED_TRACE("in memory " + std::to_string(max_in_memory) + ", seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  ReleaseQueue queue(max_in_memory);
  Counts expected;
  const auto push = [&](uint64_t max_save_id) {
    const uint64_t save_id = random() % (max_save_id + 1);
    const auto number = static_cast<uint32_t>(random() % 5);
    ASSERT_TRUE(queue.Push({save_id, number, number + 7}).ok());
    ++expected[{save_id, number}];
  };
  for (int i = 0; i < 6000; ++i) push(300);
  while (!expected.empty()) {
    const auto [save_id, number] = PopBoth(&queue, &expected);
    if (::testing::Test::HasFailure()) return;
    // As a chunk that dies releases its base.
    for (uint64_t n = random() % 4; save_id > 0 && n > 0; --n) push(save_id - 1);
  }
  EXPECT_FALSE(queue.Pop()->has_value());
  if (max_in_memory < 100) {
    EXPECT_GT(queue.num_runs_for_test(), 60u);
  }
}

TEST(ReleaseQueueTest, GivesOutTheHighestFirst) {
  for (const size_t max_in_memory : {size_t{1} << 20, size_t{64}, size_t{7}}) {
    for (const uint64_t seed : {1, 2, 3}) CompareWithAMap(max_in_memory, seed);
  }
}

// Runs are read piece by piece.
TEST(ReleaseQueueTest, LongRuns) {
  constexpr size_t kInMemory = 20000;
  ReleaseQueue queue(kInMemory);
  for (uint64_t i = 0; i < 3 * kInMemory; ++i) {
    ASSERT_TRUE(queue.Push({i * 7919 % (3 * kInMemory), 1, 2}).ok());
  }
  for (uint64_t i = 3 * kInMemory; i-- > 0;) {
    const auto released = *queue.Pop();
    ASSERT_EQ(released->what.save_id, i);
    ASSERT_EQ(released->times, 1u);
  }
  EXPECT_FALSE(queue.Pop()->has_value());
}

}  // namespace

}  // namespace varve::internal
