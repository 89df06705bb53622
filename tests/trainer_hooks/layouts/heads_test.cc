// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer_hooks/layouts/layout_cover.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::ExpectCoversOnce;
using testing::ExpectReshards;
using testing::FailsWith;
using testing::LayoutsOf;
using testing::TextsOf;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

// Four query heads of 2 rows, two heads of keys and values: Q 0:8, K 8:12, V 12:16.
constexpr AttentionHeads kGrouped{.query = 4, .key_value = 2, .head_size = 2};

Result<ShardLayout> Split(RankOf tp, QkvOrder global = QkvOrder::kParts,
                          QkvOrder held = QkvOrder::kParts) {
  return SplitQkv(ShardLayout::Whole({16, 3}), 0, kGrouped, tp, global, held);
}

// c_attn of GPT-2: rank r has [Q_r | K_r | V_r].
TEST(SplitQkvTest, EveryQueryHasItsKey) {
  const AttentionHeads heads{.query = 4, .key_value = 4, .head_size = 3};
  const auto make = [&](RankOf tp) { return SplitQkv(ShardLayout::Whole({36, 12}), 0, heads, tp); };
  EXPECT_THAT(TextsOf(2, make),
              ElementsAre("[0:6+12:18+24:30, :] of [36, 12]", "[6:12+18:24+30:36, :] of [36, 12]"));
  ExpectCoversOnce(4, make);
  const auto bias = SplitQkv(ShardLayout::Whole({36}), 0, heads, {1, 4});
  EXPECT_EQ(ToString(*bias), "[3:6+15:18+27:30] of [36]");
  // The transposed weight of Hugging Face's GPT-2.
  const auto columns = SplitQkv(ShardLayout::Whole({12, 36}), 1, heads, {1, 2});
  EXPECT_EQ(ToString(*columns), "[:, 6:12+18:24+30:36] of [12, 36]");
}

TEST(SplitQkvTest, GroupedQueries) {
  EXPECT_EQ(ToString(*Split({0, 1})), "[:, :] of [16, 3]");
  EXPECT_THAT(TextsOf(2, [](RankOf tp) { return Split(tp); }),
              ElementsAre("[0:4+8:10+12:14, :] of [16, 3]", "[4:8+10:12+14:16, :] of [16, 3]"));
}

TEST(SplitQkvTest, FewerKeysThanRanks) {
  const auto texts = TextsOf(4, [](RankOf tp) { return Split(tp); });
  EXPECT_THAT(texts,
              ElementsAre("[0:2+8:10+12:14, :] of [16, 3]", "[2:4+8:10+12:14, :] of [16, 3]",
                          "[4:6+10:12+14:16, :] of [16, 3]", "[6:8+10:12+14:16, :] of [16, 3]"));
}

// Four rows of queries, that only this rank has, before two of a key and two of its value.
TEST(SplitQkvTest, SharedKeysAreSavedAsShardsOfTheirOwn) {
  const AttentionHeads heads{.query = 4, .key_value = 2, .head_size = 4};
  for (const QkvOrder order : {QkvOrder::kParts, QkvOrder::kGroups}) {
    const auto ranks = LayoutsOf(4, [&](RankOf tp) {
      return SplitQkv(ShardLayout::Whole({32, 3}), 0, heads, tp, order, order);
    });
    std::vector<ShardLayout> shards;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      shards.push_back(*TakeIndices(ranks[rank], 0, {0, 4}));
      const ShardLayout shared = *TakeIndices(ranks[rank], 0, {4, 12});
      if (rank % 2 == 0) {
        shards.push_back(shared);
      } else {
        EXPECT_EQ(shared, shards[shards.size() - 2]);
      }
    }
    ExpectCoversOnce(shards);
  }
}

// Megatron core: q0 q1 k0 v0 | q2 q3 k1 v1.
TEST(SplitQkvTest, InterleavedByGroup) {
  const auto make = [](RankOf tp) { return Split(tp, QkvOrder::kGroups, QkvOrder::kGroups); };
  EXPECT_EQ(ToString(*make({0, 1})), "[:, :] of [16, 3]");
  EXPECT_THAT(TextsOf(2, make), ElementsAre("[0:8, :] of [16, 3]", "[8:16, :] of [16, 3]"));
  EXPECT_THAT(TextsOf(4, make), ElementsAre("[0:2+4:8, :] of [16, 3]", "[2:8, :] of [16, 3]",
                                            "[8:10+12:16, :] of [16, 3]", "[10:16, :] of [16, 3]"));
}

TEST(SplitQkvTest, OrdersAreTurnedIntoEachOther) {
  EXPECT_EQ(ToString(*Split({0, 1}, QkvOrder::kParts, QkvOrder::kGroups)),
            "[0:4+8:10+12:14+4:8+10:12+14:16, :] of [16, 3]");
  EXPECT_EQ(ToString(*Split({1, 2}, QkvOrder::kGroups, QkvOrder::kParts)), "[8:16, :] of [16, 3]");
  EXPECT_EQ(ToString(*Split({0, 1}, QkvOrder::kGroups, QkvOrder::kParts)),
            "[0:4+8:12+4:6+12:14+6:8+14:16, :] of [16, 3]");
}

TEST(SplitQkvTest, TpAndOrderChange) {
  for (const QkvOrder global : {QkvOrder::kParts, QkvOrder::kGroups}) {
    std::vector<std::vector<ShardLayout>> groups;
    for (const int64_t tp : {1, 2, 4}) {
      for (const QkvOrder held : {QkvOrder::kParts, QkvOrder::kGroups}) {
        groups.push_back(LayoutsOf(tp, [&](RankOf rank) { return Split(rank, global, held); }));
        if (tp <= kGrouped.key_value) ExpectCoversOnce(groups.back());
      }
    }
    for (const auto& source : groups) {
      for (const auto& target : groups) ExpectReshards(source, target);
    }
  }
}

TEST(SplitQkvTest, SaysWhatDoesNotFit) {
  const auto split = [](AttentionHeads heads, RankOf tp) {
    return SplitQkv(ShardLayout::Whole({16, 3}), 0, heads, tp);
  };
  EXPECT_THAT(split(kGrouped, {0, 3}),
              FailsWith(kInvalid, "4 query heads, expected a multiple of 3 ranks"));
  EXPECT_THAT(split({4, 3, 2}, {0, 1}),
              FailsWith(kInvalid, "4 query heads for 3 key and value heads, expected a multiple"));
  EXPECT_THAT(split({4, 0, 2}, {0, 1}), FailsWith(kInvalid, "for 0 key and value heads"));
  EXPECT_THAT(
      split({4, 2, 3}, {0, 1}),
      FailsWith(kInvalid, "4 query, 2 key and as many value heads of 3 indices on an axis of"));
  EXPECT_THAT(split({4, 2, 0}, {0, 1}), FailsWith(kInvalid, "of 0 indices on an axis of 16"));
  EXPECT_THAT(split({INT64_MAX, 1, INT64_MAX}, {0, 1}), FailsWith(kInvalid, "on an axis of 16"));
  EXPECT_THAT(SplitQkv(ShardLayout::Whole({24}), 0, {6, 3, 2}, {0, 2}),
              FailsWith(kInvalid, "3 key heads, expected a multiple of 2 ranks"));
}

// Separate key weights of 2 heads of 4 rows.
TEST(SplitHeadsTest, HeadsAreSplitOrReplicated) {
  const auto make = [](RankOf tp) { return SplitHeads(ShardLayout::Whole({8, 3}), 0, 2, tp); };
  EXPECT_THAT(TextsOf(2, make), ElementsAre("[0:4, :] of [8, 3]", "[4:8, :] of [8, 3]"));
  EXPECT_THAT(TextsOf(4, make), ElementsAre("[0:4, :] of [8, 3]", "[0:4, :] of [8, 3]",
                                            "[4:8, :] of [8, 3]", "[4:8, :] of [8, 3]"));
  ExpectCoversOnce(2, make);
  ExpectReshards(LayoutsOf(4, make), LayoutsOf(1, make));
  EXPECT_THAT(make({0, 3}), FailsWith(kInvalid, "2 heads, expected a multiple of 3 ranks"));
  EXPECT_THAT(SplitHeads(ShardLayout::Whole({8}), 0, 3, {0, 1}),
              FailsWith(kInvalid, "3 heads on axis 0 of 8 indices, expected a multiple"));
  EXPECT_THAT(SplitHeads(ShardLayout::Whole({8}), 0, 0, {0, 1}),
              FailsWith(kInvalid, "0 heads, expected at least 1"));
}

}  // namespace

}  // namespace varve::internal
