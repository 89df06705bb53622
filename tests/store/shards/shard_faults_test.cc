// SPDX-License-Identifier: Apache-2.0
#include "store/shards/shard_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace varve::internal {

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class ShardFaultsTest : public ::testing::Test {
 protected:
  void Add(const ShardLayout& layout) {
    layouts_.push_back(Canonical(layout));
    holders_.push_back(
        {.number = static_cast<uint32_t>(holders_.size()), .layout = &layouts_.back()});
  }
  // Rows and columns of [rows_, columns_].
  void AddBox(Range rows, Range columns) {
    ShardLayout layout = ShardLayout::Whole({kRows, kColumns});
    layout.axes[0] = {{.begin = rows.begin, .length = rows.end - rows.begin}};
    layout.axes[1] = {{.begin = columns.begin, .length = columns.end - columns.begin}};
    Add(layout);
  }
  void AddFlat(int64_t begin, int64_t end) {
    ShardLayout layout = ShardLayout::Whole({kRows, kColumns});
    layout.flat = Range{begin, end};
    Add(layout);
  }
  std::vector<std::string> Texts() const { return FindShardFaults(holders_, "rank").texts; }

  static constexpr int64_t kRows = 1000, kColumns = 300;
  std::deque<ShardLayout> layouts_;
  std::vector<ShardHolder> holders_;
};

TEST_F(ShardFaultsTest, WholeTensorsHaveNone) {
  AddBox({0, 400}, {0, kColumns});
  AddBox({400, kRows}, {0, 10});
  AddBox({400, kRows}, {10, kColumns});
  AddBox({0, 400}, {0, kColumns});  // a replica
  EXPECT_THAT(Texts(), IsEmpty());
}

TEST_F(ShardFaultsTest, AHoleInTheMiddleIsTheBoxThatItIs) {
  AddBox({0, 400}, {0, kColumns});
  AddBox({400, 700}, {0, 100});
  AddBox({400, 700}, {120, kColumns});
  AddBox({700, kRows}, {0, kColumns});
  EXPECT_THAT(Texts(), ElementsAre(AllOf(
                           StartsWith("its shards hold 294000 of the 300000 elements of [1000, "
                                      "300]: no rank holds [400:700, 100:120]; beside it "),
                           HasSubstr("rank 1 holds [400:700, 0:100] of [1000, 300]"))));
}

TEST_F(ShardFaultsTest, AllHolesAndOverlapsOfATensorAreTold) {
  AddBox({0, 401}, {0, kColumns});
  AddBox({400, 700}, {0, 299});
  AddBox({701, kRows}, {0, kColumns});
  const std::vector<std::string> texts = Texts();
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_THAT(texts[0], HasSubstr("overlap in 299 elements and are no replicas: both hold "
                                  "[400:401, 0:299]"));
  EXPECT_THAT(texts, ::testing::Contains(HasSubstr("no rank holds [700:701, :]")));
  EXPECT_THAT(texts, ::testing::Contains(HasSubstr("no rank holds [401:701, 299:300]")));
}

// One slice of ZeRO is an element short, and another starts one element too early.
TEST_F(ShardFaultsTest, FlatRangesAreFoundToTheElement) {
  AddFlat(0, 100'000);
  AddFlat(100'001, 200'000);
  AddFlat(199'999, 300'000);
  const std::vector<std::string> texts = Texts();
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_THAT(texts[0], HasSubstr("overlap in 1 elements and are no replicas: both hold "
                                  "[666:667, 199:200]"));
  EXPECT_THAT(texts[1], HasSubstr("no rank holds [333:334, 100:101]"));
}

TEST_F(ShardFaultsTest, PaddingHoldsNothing) {
  ShardLayout layout = ShardLayout::Whole({4});
  layout.axes[0] = {{.begin = 0, .length = 3}, {.length = 5, .is_padding = true}};
  Add(layout);
  EXPECT_THAT(Texts(),
              ElementsAre(HasSubstr("hold 3 of the 4 elements of [4]: no rank holds [3:4]")));
}

TEST_F(ShardFaultsTest, AScalarIsHeldOrNot) {
  Add(ShardLayout::Whole(std::initializer_list<int64_t>{}));
  EXPECT_THAT(Texts(), IsEmpty());
}

TEST_F(ShardFaultsTest, ThousandsOfShardsAreLookedThrough) {
  ShardLayout layout = ShardLayout::Whole({3000, 8});
  for (int64_t row = 0; row < 3000; ++row) {
    if (row == 1234) continue;
    layout.axes[0] = {{.begin = row, .length = 1}};
    Add(layout);
  }
  EXPECT_THAT(Texts(), ElementsAre(HasSubstr("no rank holds [1234:1235, :]; beside it rank 1233 "
                                             "holds [1233:1234, :] of [3000, 8], rank 1234 holds "
                                             "[1235:1236, :]")));
}

}  // namespace

}  // namespace varve::internal
