// SPDX-License-Identifier: Apache-2.0
//
// Cuts heads that tensor parallelism does not divide, and compares with the same done head by head.
#include "tests/trainer_hooks/layouts/layout_cover.h"

namespace varve::internal {

namespace {

using testing::FailsWith;
using testing::PlacesOf;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr int64_t kHeadSize = 2;
constexpr QkvOrder kOrders[] = {QkvOrder::kParts, QkvOrder::kGroups};

struct Head {
  char kind = 'q';  // k, v
  int64_t number = 0;
  bool operator==(const Head&) const = default;
};

// Returns those heads of all that `has` accepts, in an order.
std::vector<Head> Ordered(const AttentionHeads& heads, QkvOrder order,
                          const std::function<bool(const Head&)>& has) {
  std::vector<Head> all;
  const auto add = [&](const Head& head) {
    if (has(head)) all.push_back(head);
  };
  const int64_t each = heads.query / heads.key_value;
  if (order == QkvOrder::kParts) {
    for (int64_t i = 0; i < heads.query; ++i) add({'q', i});
    for (int64_t i = 0; i < heads.key_value; ++i) add({'k', i});
    for (int64_t i = 0; i < heads.key_value; ++i) add({'v', i});
    return all;
  }
  for (int64_t group = 0; group < heads.key_value; ++group) {
    for (int64_t i = group * each; i < (group + 1) * each; ++i) add({'q', i});
    add({'k', group});
    add({'v', group});
  }
  return all;
}

bool IsIn(const Range& range, int64_t i) { return range.begin <= i && i < range.end; }

// The indices of an axis that holds `global`, of the heads of `held`, one head after the other.
std::vector<int64_t> Indices(const std::vector<Head>& held, const std::vector<Head>& global) {
  std::vector<int64_t> indices;
  for (const Head& head : held) {
    const int64_t at = std::find(global.begin(), global.end(), head) - global.begin();
    for (int64_t i = 0; i < kHeadSize; ++i) indices.push_back(at * kHeadSize + i);
  }
  return indices;
}

TEST(HeadsOfRankTest, TheFirstRanksHaveMoreAndAllHaveTheKeysOfTheirQueries) {
  const AttentionHeads heads{.query = 6, .key_value = 2, .head_size = kHeadSize};
  const Range queries[] = {{0, 2}, {2, 4}, {4, 5}, {5, 6}};
  const Range keys[] = {{0, 1}, {0, 2}, {1, 2}, {1, 2}};
  const Range own[] = {{0, 1}, {1, 2}, {2, 2}, {2, 2}};
  for (size_t rank = 0; rank < 4; ++rank) {
    const auto of_rank = HeadsOfRank(heads, {static_cast<int64_t>(rank), 4});
    ASSERT_TRUE(of_rank.ok()) << of_rank.status().ToString();
    EXPECT_EQ(of_rank->query, queries[rank]);
    EXPECT_EQ(of_rank->key_value, keys[rank]);
    EXPECT_EQ(of_rank->own_key_value, own[rank]);
  }
}

TEST(HeadsOfRankTest, WhatRanksSaveIsAllOnceAndWhatTheyLoadIsWhatTheyUse) {
  for (const auto& [query, key_value] :
       std::vector<std::pair<int64_t, int64_t>>{{6, 2}, {6, 6}, {6, 1}, {12, 3}, {8, 4}, {9, 3}}) {
    const AttentionHeads heads{query, key_value, kHeadSize};
    const int64_t each = query / key_value;
    const ShardLayout whole = ShardLayout::Whole({(query + 2 * key_value) * kHeadSize});
    for (const int64_t ranks : {1, 2, 4, 5, 8, 13}) {
      for (const QkvOrder global : kOrders) {
        const auto all = Ordered(heads, global, [](const Head&) { return true; });
        for (const QkvOrder held : kOrders) {
          std::vector<ShardLayout> saved;
          for (int64_t rank = 0; rank < ranks; ++rank) {
            const RankHeads of_rank = *HeadsOfRank(heads, {rank, ranks});
            const auto loads =
                TakeQkv(whole, 0, heads, of_rank.query, of_rank.key_value, global, held);
            ASSERT_TRUE(loads.ok()) << loads.status().ToString();
            // torch.tensor_split: the first `query % ranks` parts are longer by one.
            const int64_t first = rank * (query / ranks) + std::min(rank, query % ranks);
            const Range queries{first, first + query / ranks + (rank < query % ranks ? 1 : 0)};
            const auto uses = [&](const Head& head) {
              if (head.kind == 'q') return IsIn(queries, head.number);
              for (int64_t q = queries.begin; q < queries.end; ++q) {
                if (q / each == head.number) return true;
              }
              return false;
            };
            EXPECT_EQ(PlacesOf(*loads), Indices(Ordered(heads, held, uses), all));
            saved.push_back(
                *TakeQkv(whole, 0, heads, of_rank.query, of_rank.own_key_value, global, held));
          }
          testing::ExpectCoversOnce(saved);
        }
      }
    }
  }
}

TEST(HeadsOfRankTest, RefusesWhatCannotBe) {
  const AttentionHeads heads{.query = 6, .key_value = 2, .head_size = kHeadSize};
  EXPECT_THAT(HeadsOfRank(heads, {4, 4}), FailsWith(kInvalid, "rank 4 of 4"));
  EXPECT_THAT(HeadsOfRank({.query = 5, .key_value = 2, .head_size = 1}, {0, 4}),
              FailsWith(kInvalid, "expected a multiple"));
  const ShardLayout whole = ShardLayout::Whole({20});
  EXPECT_THAT(TakeQkv(whole, 0, heads, {0, 7}, {0, 1}),
              FailsWith(kInvalid, "query heads 0:7 of 6"));
  EXPECT_THAT(TakeQkv(whole, 0, heads, {0, 1}, {1, 0}),
              FailsWith(kInvalid, "key and value heads 1:0 of 2"));
  EXPECT_FALSE(TakeQkv(ShardLayout::Whole({21}), 0, heads, {0, 1}, {0, 1}).ok());
}

}  // namespace

}  // namespace varve::internal
