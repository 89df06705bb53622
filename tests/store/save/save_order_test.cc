// SPDX-License-Identifier: Apache-2.0
#include "store/save/save_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace varve::internal {

namespace {

using ::testing::ElementsAre;

struct Item {
  int number = 0;
  Item* of = nullptr;
  Item* master() const { return of; }
};

TEST(SaveOrderTest, CopiesComeRightBehindTheirMastersAndAllElseStays) {
  std::vector<Item> items(7);
  for (int i = 0; i < 7; ++i) items[static_cast<size_t>(i)].number = i;
  items[0].of = &items[4];
  items[2].of = &items[1];
  items[6].of = &items[4];
  std::vector<int> order;
  for (const Item* item : MastersBeforeCopies<Item>(&items)) order.push_back(item->number);
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4, 0, 6, 5));
}

TEST(SaveOrderTest, ACopyIsNarrowAndDenseAndHasAsManyChunksAsItsMaster) {
  const CopyTraits copy{DType::kBF16, true, 3}, master{DType::kF32, true, 3};
  EXPECT_TRUE(MayBeRoundedCopy(copy, master));
  EXPECT_TRUE(MayBeRoundedCopy({DType::kF16, true, 3}, master));
  EXPECT_FALSE(MayBeRoundedCopy({DType::kF32, true, 3}, master));
  EXPECT_FALSE(MayBeRoundedCopy({DType::kBF16, false, 3}, master));
  EXPECT_FALSE(MayBeRoundedCopy({DType::kBF16, true, 2}, master));
  EXPECT_FALSE(MayBeRoundedCopy(copy, {DType::kBF16, true, 3}));
  EXPECT_FALSE(MayBeRoundedCopy(copy, {DType::kF32, false, 3}));
}

}  // namespace

}  // namespace varve::internal
