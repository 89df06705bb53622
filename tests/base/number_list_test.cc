// SPDX-License-Identifier: Apache-2.0
#include "base/number_list.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace varve::internal {
namespace {

TEST(NumberListTest, NamesNumbersAndRanges) {
  using Numbers = std::vector<uint32_t>;
  EXPECT_EQ(NumberList("rank", Numbers{}), "ranks");
  EXPECT_EQ(NumberList("rank", Numbers{2}), "rank 2");
  EXPECT_EQ(NumberList("rank", Numbers{2, 3}), "ranks 2, 3");
  EXPECT_EQ(NumberList("shard", Numbers{2, 3, 4}), "shards 2-4");
  EXPECT_EQ(NumberList("rank", std::vector<int>{0, 2, 3, 5, 6, 7, 9}), "ranks 0, 2, 3, 5-7, 9");
}

TEST(NumberListTest, CutsAVeryLongList) {
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < 32; ++i) numbers.push_back(2 * i);
  const std::string all = NumberList("rank", numbers);
  EXPECT_TRUE(all.ends_with(", 60, 62")) << all;
  numbers.push_back(70);
  numbers.push_back(72);
  EXPECT_EQ(NumberList("rank", numbers), all + " and 2 more");
  std::vector<uint32_t> range(1000);
  std::iota(range.begin(), range.end(), 5);
  EXPECT_EQ(NumberList("rank", range), "ranks 5-1004");
}

}  // namespace
}  // namespace varve::internal
