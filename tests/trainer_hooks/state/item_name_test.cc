// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/item_name.h"

#include "tests/store/store_fixture.h"

namespace varve::internal {

namespace {

using testing::FailsWith;

TEST(ItemNameTest, NamesOfRanksAndOfTheJobRoundTrip) {
  const ItemName names[] = {{"loader", std::nullopt}, {"loader", 0},          {"loader", 3},
                            {"a/b", 99'999},          {"loader", 100'000},    {"x", UINT32_MAX},
                            {"rank_00001/x", 7},      {"rank_", std::nullopt}};
  for (const ItemName& name : names) {
    const Result<std::string> stored = EncodeItemName(name);
    ASSERT_TRUE(stored.ok()) << stored.status().ToString();
    EXPECT_EQ(DecodeItemName(*stored), name) << *stored;
  }
  EXPECT_EQ(EncodeItemName({"loader", 3}).value(), "rank_00003/loader");
  EXPECT_EQ(EncodeItemName({"loader", std::nullopt}).value(), "loader");
}

TEST(ItemNameTest, NameOfTheJobMustNotLookLikeThatOfARank) {
  EXPECT_THAT(EncodeItemName({"rank_00003/loader", std::nullopt}),
              FailsWith(StatusCode::kInvalidArgument, "\"rank_00003/loader\" is kept for"));
}

TEST(ItemNameTest, RefusesWhatTheStoreWould) {
  EXPECT_THAT(EncodeItemName({"", 1}), FailsWith(StatusCode::kInvalidArgument, "item name"));
  EXPECT_THAT(EncodeItemName({std::string(kMaxNameBytes, 'x'), 1}),
              FailsWith(StatusCode::kInvalidArgument, "item name"));
}

// A program that writes a store by hand may use any name.
TEST(ItemNameTest, WhatNoRankHasMadeIsOfTheJob) {
  for (const char* stored :
       {"rank_3/x", "rank_000003/x", "rank_00003", "rank_00003/", "rank_-0001/x",
        "rank_99999999999/x", "rank_+0001/x", "rank_/x", "Rank_00003/x"}) {
    EXPECT_EQ(DecodeItemName(stored), (ItemName{stored, std::nullopt}));
    EXPECT_TRUE(EncodeItemName({stored, std::nullopt}).ok()) << stored;
  }
}

}  // namespace

}  // namespace varve::internal
