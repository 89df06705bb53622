// SPDX-License-Identifier: Apache-2.0
#include "store/save/save_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace varve::internal {

namespace {

using ::testing::ElementsAre;

struct Item {
  int number = 0;
  Item* of = nullptr;
  std::span<Item* const> beside{};
  std::string_view derived{};
  CopyTraits traits{DType::kBF16, true, 3};
  uint32_t shard = 0;
  std::string_view derived_from() const { return derived; }
  CopyTraits Traits() const { return traits; }
  Item* master() const { return of; }
  void SetMaster(Item* to) { of = to; }
  std::span<Item* const> together() const { return beside; }
};

std::vector<Item> Items(size_t n) {
  std::vector<Item> items(n);
  for (size_t i = 0; i < n; ++i) items[i].number = static_cast<int>(i);
  return items;
}

std::vector<int> OrderOf(std::vector<Item>* items) {
  std::vector<int> order;
  for (const Item* item : SaveOrder<Item>(items)) order.push_back(item->number);
  return order;
}

TEST(SaveOrderTest, CopiesComeRightBehindTheirMastersAndAllElseStays) {
  std::vector<Item> items = Items(7);
  items[0].of = &items[4];
  items[2].of = &items[1];
  items[6].of = &items[4];
  EXPECT_THAT(OrderOf(&items), ElementsAre(1, 2, 3, 4, 0, 6, 5));
}

TEST(SaveOrderTest, WhatIsTogetherComesWhereItsFirstWasAndThenItsCopies) {
  std::vector<Item> items = Items(8);
  const std::array<Item*, 3> step = {&items[6], &items[5], &items[2]};
  for (Item* const item : step) item->beside = step;
  items[0].of = &items[2];
  items[1].of = &items[7];
  items[4].of = &items[6];
  EXPECT_THAT(OrderOf(&items), ElementsAre(6, 5, 2, 4, 0, 3, 7, 1));
}

TEST(SaveOrderTest, ATensorGetsTheMasterThatItNamesIfItCanBeItsCopy) {
  std::vector<Item> items = Items(5);
  items[4].traits.dtype = DType::kF32;
  const auto find = [&](std::string_view name, uint32_t shard) -> Item* {
    return name == "master" && shard == 7 ? &items[4] : nullptr;
  };
  EXPECT_FALSE(LinkMasters(&items, find));  // none names one
  items[0].derived = items[1].derived = items[3].derived = "master";
  items[2].derived = "nowhere";
  items[1].shard = items[3].shard = 7;
  items[3].traits.num_chunks = 2;
  EXPECT_TRUE(LinkMasters(&items, find));
  std::vector<Item*> masters;
  for (const Item& item : items) masters.push_back(item.of);
  EXPECT_THAT(masters, ElementsAre(nullptr, &items[4], nullptr, nullptr, nullptr));
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
