// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer_hooks/layouts/layout_cover.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using testing::ExpectCoversOnce;
using testing::ExpectReshards;
using testing::FailsWith;
using testing::kPaddingPlace;
using testing::LayoutsOf;
using testing::PlacesOf;
using testing::TextsOf;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr int64_t kMebi = int64_t{1} << 20;

// 7 rows of 3 are 21 elements, padded to 24 for 4 ranks.
TEST(SliceFlatTest, PadsToTheRanks) {
  EXPECT_THAT(TextsOf(4,
                      [](RankOf dp) {
                        return SliceFlat(ShardLayout::Whole({7, 3}), dp);
                      }),
              ElementsAre("[:, :] of [7, 3], elements 0:6", "[:, :] of [7, 3], elements 6:12",
                          "[:, :] of [7, 3], elements 12:18", "[:, :] of [7, 3], elements 18:24"));
  const auto last = SliceFlat(ShardLayout::Whole({7, 3}), {3, 4});
  EXPECT_EQ(last->NumLocal(), 6);
  EXPECT_EQ(last->NumHeld(), 3);
}

// A scalar on four ranks: one holds it, three hold padding.
TEST(SliceFlatTest, MoreRanksThanElements) {
  const auto make = [](RankOf dp) { return SliceFlat(ShardLayout::Whole({}), dp); };
  EXPECT_THAT(TextsOf(4, make), ElementsAre("[] of [], elements 0:1", "[] of [], elements 1:2",
                                            "[] of [], elements 2:3", "[] of [], elements 3:4"));
  ExpectCoversOnce(4, make);
}

TEST(SliceFlatTest, AllSizesAreCoveredOnce) {
  for (const int64_t size : {0, 1, 5, 63, 64, 65, 1009}) {
    for (const int64_t ranks : {1, 2, 3, 4, 7}) {
      for (const int64_t align : {1, 64}) {
        ExpectCoversOnce(
            ranks, [&](RankOf dp) { return SliceFlat(ShardLayout::Whole({size}), dp, align); });
      }
    }
  }
}

// Un-shard, reshape to the local shape, then merge tp: rank 1 of 2 has columns 2 and 3 of each row.
TEST(SliceFlatTest, SlicesAreOfTheLocalTensor) {
  const ShardLayout columns = *SplitEvenly(ShardLayout::Whole({3, 4}), 1, {1, 2});
  EXPECT_THAT(PlacesOf(*SliceFlat(columns, {0, 2})), ElementsAre(2, 3, 6));
  EXPECT_THAT(PlacesOf(*SliceFlat(columns, {1, 2})), ElementsAre(7, 10, 11));
  EXPECT_THAT(PlacesOf(*SliceFlat(columns, {1, 2}, 8)),
              ElementsAre(10, 11, kPaddingPlace, kPaddingPlace));
}

TEST(SliceFlatTest, ShardedTpBecomesAnotherShardedTp) {
  const auto ranks_of = [](int64_t tp_ranks, int64_t dp_ranks, size_t axis) {
    std::vector<ShardLayout> layouts;
    for (int64_t tp = 0; tp < tp_ranks; ++tp) {
      for (int64_t dp = 0; dp < dp_ranks; ++dp) {
        const auto local = SplitEvenly(ShardLayout::Whole({12, 20}), axis, {tp, tp_ranks});
        layouts.push_back(*SliceFlat(*local, {dp, dp_ranks}));
      }
    }
    ExpectCoversOnce(layouts);
    return layouts;
  };
  const auto a = ranks_of(4, 3, 1), b = ranks_of(2, 7, 0), c = ranks_of(1, 1, 0);
  for (const auto& source : {a, b, c}) {
    for (const auto& target : {a, b, c}) ExpectReshards(source, target);
  }
}

TEST(SliceLargeTest, OnlyWhatIsLargerThan2To20) {
  const auto slices = [](int64_t size) {
    return TextsOf(2,
                   [&](RankOf group) { return SliceLarge(ShardLayout::Whole({size}), 4, group); });
  };
  EXPECT_THAT(slices(kMebi - 1), ElementsAre("[:] of [1048575]", "[:] of [1048575]"));
  EXPECT_THAT(slices(kMebi), ElementsAre("[:] of [1048576]", "[:] of [1048576]"));
  // 64 elements are 256 bytes, so that 63 of padding follow.
  EXPECT_THAT(slices(kMebi + 1), ElementsAre("[:] of [1048577], elements 0:524320",
                                             "[:] of [1048577], elements 524320:1048640"));
  // After the alignment to 128 elements of 2 bytes, that to 3 ranks.
  EXPECT_THAT(
      TextsOf(3,
              [](RankOf group) { return SliceLarge(ShardLayout::Whole({kMebi + 1}), 2, group); }),
      ElementsAre("[:] of [1048577], elements 0:349568", "[:] of [1048577], elements 349568:699136",
                  "[:] of [1048577], elements 699136:1048704"));
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    ExpectCoversOnce(ranks, [](RankOf group) {
      return SliceLarge(ShardLayout::Whole({17, 61681}), 4, group);
    });
  }
  EXPECT_THAT(SliceLarge(ShardLayout::Whole({5}), 3, {0, 2}),
              FailsWith(kInvalid, "elements of 3 bytes, expected a divisor of 256"));
}

TEST(TakeElementsTest, OfWhatARankHolds) {
  EXPECT_EQ(ToString(*TakeElements(ShardLayout::Whole({4, 4}), {3, 7})),
            "[:, :] of [4, 4], elements 3:7");
  EXPECT_THAT(TakeElements(ShardLayout::Whole({4, 4}), {7, 3}),
              FailsWith(kInvalid, "flat range 7:3"));
  EXPECT_THAT(TakeElements(*SliceFlat(ShardLayout::Whole({4}), {0, 2}), {0, 1}),
              FailsWith(kInvalid, "has a flat range, expected one without"));
  EXPECT_THAT(SliceFlat(ShardLayout::Whole({4}), {2, 2}), FailsWith(kInvalid, "rank 2 of 2"));
  EXPECT_THAT(SliceFlat(ShardLayout::Whole({4}), {0, 2}, 0),
              FailsWith(kInvalid, "4 padded to a multiple of 0"));
}

// 5 goes to rank 0, 3 to 1, 8 to 1 (3 < 5), 1 to 0, 2 to 0 (6 < 11), 2 to 0 (8 < 11).
TEST(AssignOwnersTest, InFileOrder) {
  const std::vector<int64_t> sizes{5, 3, 8, 1, 2, 2};
  EXPECT_THAT(*AssignOwners(sizes, 2, OwnerOrder::kAsGiven), ElementsAre(0, 1, 1, 0, 0, 0));
}

// 8 to 0, 5 to 1, 3 to 1, 2 (the first) to 0 as both have 8, 2 to 1, 1 to 0 as both have 10.
TEST(AssignOwnersTest, LargestFirst) {
  const std::vector<int64_t> sizes{5, 3, 8, 1, 2, 2};
  EXPECT_THAT(*AssignOwners(sizes, 2, OwnerOrder::kLargestFirst), ElementsAre(1, 1, 0, 0, 0, 1));
}

TEST(AssignOwnersTest, ManyRanksAndWrongSizes) {
  const std::vector<int64_t> sizes{1, 1};
  EXPECT_THAT(*AssignOwners(sizes, 4, OwnerOrder::kAsGiven), ElementsAre(0, 1));
  EXPECT_THAT(*AssignOwners({}, 4, OwnerOrder::kAsGiven), ElementsAre());
  EXPECT_THAT(AssignOwners(sizes, 0, OwnerOrder::kAsGiven),
              FailsWith(kInvalid, "0 ranks, expected at least 1"));
  const std::vector<int64_t> negative{4, -1};
  EXPECT_THAT(AssignOwners(negative, 2, OwnerOrder::kAsGiven),
              FailsWith(kInvalid, "tensor 1 of -1 elements"));
  const std::vector<int64_t> huge{INT64_MAX, INT64_MAX};
  EXPECT_THAT(AssignOwners(huge, 1, OwnerOrder::kAsGiven), FailsWith(kInvalid, "fits int64"));
}

}  // namespace

}  // namespace varve::internal
