// SPDX-License-Identifier: Apache-2.0
#include "store/shards/regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ShardLayout Rows(int64_t begin, int64_t end) {
  ShardLayout layout = ShardLayout::Whole({8, 3});
  layout.axes[0] = {{begin, end - begin}};
  return layout;
}

TEST(CoverageTest, PartsThatHoldEverythingOnceAreProven) {
  const ShardLayout shards[] = {Rows(0, 3), Rows(3, 8), Rows(0, 3), Rows(4, 4)};
  EXPECT_TRUE(ProveCoverage(shards).ok()) << ProveCoverage(shards).ToString();
}

TEST(CoverageTest, AHoleIsNamed) {
  const ShardLayout shards[] = {Rows(0, 3), Rows(4, 8)};
  EXPECT_THAT(ProveCoverage(shards).message(),
              HasSubstr("hold 21 of the 24 elements of [:, :] of [8, 3]"));
}

TEST(CoverageTest, AnOverlapIsNamedAlsoWhenAHoleMakesUpForIt) {
  const ShardLayout shards[] = {Rows(0, 3), Rows(2, 7)};
  EXPECT_THAT(ProveCoverage(shards).message(),
              HasSubstr("[0:3, :] of [8, 3] and [2:7, :] of [8, 3] overlap in 3 elements"));
}

TEST(CoverageTest, ShardsOfOtherTensorsAreRefused) {
  const ShardLayout shards[] = {Rows(0, 8), ShardLayout::Whole({8, 4})};
  EXPECT_THAT(ProveCoverage(shards).message(), HasSubstr("different global shapes"));
}

TEST(FindPartsTest, NamesTheFirstReplicaOfEachShardThatIsNeeded) {
  const ShardLayout shards[] = {Rows(0, 3), Rows(0, 3), Rows(3, 6), Rows(6, 8)};
  EXPECT_THAT(*FindParts(shards, Rows(1, 5)), ElementsAre(0, 2));
  EXPECT_THAT(*FindParts(shards, Rows(7, 8)), ElementsAre(3));
  EXPECT_TRUE(FindParts(shards, Rows(2, 2))->empty());
}

TEST(FindPartsTest, UncoveredRegionsAreDamage) {
  const ShardLayout shards[] = {Rows(0, 3), Rows(5, 8)};
  EXPECT_TRUE(FindParts(shards, Rows(6, 8)).ok());
  EXPECT_EQ(FindParts(shards, Rows(2, 6)).status().code(), StatusCode::kCorruption);
}

TEST(LayoutOfSliceTest, RefusesRangesThatAreNotInTheTensor) {
  struct BadSlice {
    std::vector<Range> slice;
    const char* message;
  };
  const std::vector<int64_t> shape = {3, 4};
  const std::vector<BadSlice> bad = {{{{0, 3}}, "1 ranges"},
                                     {{{0, 3}, {0, 4}, {0, 1}}, "3 ranges"},
                                     {{{0, 4}, {0, 4}}, "axis 0"},
                                     {{{0, 3}, {2, 1}}, "2:1 of axis 1"},
                                     {{{-1, 3}, {0, 4}}, "-1:3"},
                                     {{{0, 3}, {0, INT64_MAX}}, "axis 1"},
                                     {{{INT64_MIN, 3}, {0, 4}}, "axis 0"}};
  for (const BadSlice& b : bad) {
    const auto layout = LayoutOfSlice(shape, b.slice);
    ASSERT_FALSE(layout.ok()) << b.message;
    EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(layout.status().message(), HasSubstr(b.message));
  }
  EXPECT_EQ(LayoutOfSlice(shape, {})->LocalShape(), shape);
}

}  // namespace

}  // namespace varve::internal
