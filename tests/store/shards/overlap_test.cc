// SPDX-License-Identifier: Apache-2.0
#include "store/shards/overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/shard_reference.h"
#include "varve/shard_layout.h"
#include "varve/tensor.h"

namespace varve::internal {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using testing::kPaddingPlace;
using testing::PlacesOf;

class RandomLayouts {
 public:
  explicit RandomLayouts(uint32_t seed) : random_(seed) {}

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  std::vector<int64_t> Shape() {
    std::vector<int64_t> shape;
    for (int64_t axes = Below(5); axes > 0; --axes)
      shape.push_back(Below(8) == 0 ? 0 : 1 + Below(6));
    return shape;
  }

  ShardLayout Layout(const std::vector<int64_t>& shape) {
    ShardLayout layout = ShardLayout::Whole(shape);
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (Below(2) == 0) layout.axes[axis] = Segments(shape[axis]);
    }
    if (Below(2) == 0) {
      const int64_t size = *NumElements(layout.ProductShape());
      const int64_t begin = Below(size + 3);
      layout.flat = Range{begin, begin + Below(size + 3)};
    }
    return layout;
  }

 private:
  // Some of the parts of an axis in any order, and padding.
  std::vector<Segment> Segments(int64_t size) {
    std::vector<Segment> parts;
    for (int64_t begin = 0; begin < size;) {
      const int64_t length = 1 + Below(size - begin);
      if (Below(4) > 0) parts.push_back({begin, length});
      begin += length;
    }
    std::shuffle(parts.begin(), parts.end(), random_);
    if (Below(3) == 0) {
      const auto at = Below(static_cast<int64_t>(parts.size()) + 1);
      parts.insert(parts.begin() + at, {.length = 1 + Below(3), .is_padding = true});
    }
    return parts;
  }

  std::mt19937 random_;
};

TEST(OverlapTest, RandomLayoutsCopyTheElementsThatBothHold) {
  RandomLayouts random(7);
  for (int round = 0; round < 20000; ++round) {
    const std::vector<int64_t> shape = random.Shape();
    const ShardLayout source = random.Layout(shape), target = random.Layout(shape);
    ASSERT_TRUE(ValidateLayout(source).ok()) << ValidateLayout(source).ToString();
    const std::vector<int64_t> from = PlacesOf(source), to = PlacesOf(target);
    ASSERT_EQ(source.NumLocal(), static_cast<int64_t>(from.size()));
    ASSERT_EQ(source.NumHeld(), std::count_if(from.begin(), from.end(),
                                              [](int64_t i) { return i != kPaddingPlace; }));
    const int64_t begin = random.Below(source.NumLocal() + 2);
    const Range window{begin, round % 2 == 0 ? INT64_MAX : begin + random.Below(20)};
    std::vector<int64_t> copied(to.size(), kPaddingPlace), expected(to.size(), kPaddingPlace);
    uint64_t count = 0;
    uint64_t previous_end = 0;
    const Overlap overlap(source, target);
    overlap.ForEachRun(window, [&](const CopyRun& run) {
      ASSERT_LE(previous_end, run.source);
      ASSERT_GT(run.length, 0u);
      ASSERT_LE(run.source + run.length, from.size());
      ASSERT_LE(run.target + run.length, to.size());
      previous_end = run.source + run.length;
      count += run.length;
      for (uint64_t i = 0; i < run.length; ++i) copied[run.target + i] = from[run.source + i];
    });
    for (size_t i = 0; i < to.size(); ++i) {
      const auto at =
          to[i] == kPaddingPlace ? from.end() : std::find(from.begin(), from.end(), to[i]);
      if (at == from.end()) continue;
      const int64_t place = at - from.begin();
      if (place >= window.begin && place < window.end) expected[i] = to[i];
    }
    ASSERT_EQ(copied, expected) << ToString(source) << " to " << ToString(target);
    ASSERT_EQ(overlap.Count(window), count) << ToString(source) << " to " << ToString(target);
  }
}

std::vector<CopyRun> RunsOf(const ShardLayout& source, const ShardLayout& target) {
  std::vector<CopyRun> runs;
  Overlap(source, target).ForEachRun(Overlap::kEverywhere, [&](const CopyRun& run) {
    runs.push_back(run);
  });
  return runs;
}

// The runs of blocks by rising source.
std::vector<CopyRun> RunsOfBlocks(const Overlap& overlap, Range window) {
  std::vector<CopyRun> runs;
  overlap.ForEachBlock(window, [&](const CopyBlock& block) {
    for (uint64_t i = 0; i < block.count; ++i) {
      runs.push_back({block.source + i * block.source_step, block.target + i * block.target_step,
                      block.length});
    }
  });
  std::sort(runs.begin(), runs.end(),
            [](const CopyRun& a, const CopyRun& b) { return a.source < b.source; });
  return runs;
}

TEST(OverlapTest, BlocksAreTheSameRuns) {
  RandomLayouts random(11);
  size_t most = 0;  // runs of a block
  for (int round = 0; round < 4000; ++round) {
    const std::vector<int64_t> shape = random.Shape();
    const ShardLayout source = random.Layout(shape), target = random.Layout(shape);
    const int64_t begin = random.Below(source.NumLocal() + 2);
    const Range window{begin, round % 2 == 0 ? INT64_MAX : begin + random.Below(20)};
    const Overlap overlap(source, target);
    std::vector<CopyRun> runs;
    overlap.ForEachRun(window, [&](const CopyRun& run) { runs.push_back(run); });
    ASSERT_EQ(RunsOfBlocks(overlap, window), runs)
        << ToString(source) << " to " << ToString(target);
    ASSERT_EQ(overlap.FindFirstRun(window),
              runs.empty() ? std::nullopt : std::optional(runs.front()));
    overlap.ForEachBlock(window,
                         [&](const CopyBlock& block) { most = std::max(most, block.count); });
    for (const uint64_t bits : {4, 6, 8}) {
      bool is_whole = true;
      overlap.ForEachRun(Overlap::kEverywhere, [&](const CopyRun& run) {
        for (const uint64_t n : {run.source, run.target, run.length}) {
          is_whole = is_whole && n * bits % 8 == 0;
        }
      });
      ASSERT_EQ(overlap.IsOnWholeBytes(bits), is_whole)
          << ToString(source) << " to " << ToString(target);
    }
  }
  EXPECT_GE(most, 6u);
}

// The cost of a cut by columns is that of its blocks, not of its runs.
TEST(OverlapTest, ColumnsAreFewBlocks) {
  ShardLayout column = ShardLayout::Whole({1 << 20, 2, 16});
  column.axes[2] = {{3, 1}};
  const Overlap overlap(column, ShardLayout::Whole({1 << 20, 2, 16}));
  size_t blocks = 0;
  overlap.ForEachBlock(Overlap::kEverywhere, [&](const CopyBlock& block) {
    ++blocks;
    EXPECT_EQ(block.count, uint64_t{2} << 20);
  });
  EXPECT_EQ(blocks, 1u);
}

TEST(OverlapTest, WholeAxesAreJoinedToOneRun) {
  ShardLayout rows = ShardLayout::Whole({64, 3, 5});
  rows.axes[0] = {{8, 16}};
  EXPECT_THAT(RunsOf(ShardLayout::Whole({64, 3, 5}), rows), ElementsAre(CopyRun{120, 0, 240}));
}

TEST(OverlapTest, CountingAHugeTensorTakesNoTime) {
  ShardLayout columns = ShardLayout::Whole({int64_t{1} << 30, int64_t{1} << 30});
  columns.axes[1] = {{5, 7}};
  ShardLayout flat = ShardLayout::Whole({int64_t{1} << 30, int64_t{1} << 30});
  flat.flat = Range{3, (int64_t{1} << 59) + 1};
  EXPECT_EQ(Overlap(columns, flat).Count(), (uint64_t{1} << 29) * 7);
}

TEST(ShardLayoutTest, SaysWhatIsWrong) {
  ShardLayout layout = ShardLayout::Whole({4, 6});
  layout.axes[1] = {{2, 5}};
  EXPECT_THAT(ValidateLayout(layout).message(),
              HasSubstr("axis 1: segment 2 + 5 of an axis of 6 indices"));
  layout.axes[1] = {{2, 2}, {3, 1}};
  EXPECT_THAT(ValidateLayout(layout).message(), HasSubstr("axis 1: index 3 twice"));
  layout.axes[1] = {{2, INT64_MAX}};
  EXPECT_FALSE(ValidateLayout(layout).ok());
  layout.axes.pop_back();
  EXPECT_THAT(ValidateLayout(layout).message(), HasSubstr("1 axes, the global tensor 2"));
  layout = ShardLayout::Whole({4});
  layout.flat = Range{3, 2};
  EXPECT_THAT(ValidateLayout(layout).message(), HasSubstr("flat range 3:2"));
  layout.flat = Range{0, (int64_t{1} << 61) + 1};
  EXPECT_THAT(ValidateLayout(layout).message(), HasSubstr("<= 2^61"));
  const int64_t large = int64_t{1} << 31;
  EXPECT_TRUE(ValidateLayout(ShardLayout::Whole({large, large / 2})).ok());
  for (const ShardLayout& huge :
       {ShardLayout::Whole({large, large}), ShardLayout::Whole({0, large, large})}) {
    EXPECT_THAT(ValidateLayout(huge).message(), HasSubstr("more than 2^61 places"));
  }
  layout = ShardLayout::Whole({4, 4});
  layout.axes[0] = {{.length = INT64_MAX, .is_padding = true}};
  EXPECT_FALSE(ValidateLayout(layout).ok());
}

TEST(ShardLayoutTest, IsPrintedAsNumPyWritesSlices) {
  ShardLayout layout = ShardLayout::Whole({64, 32});
  layout.axes[0] = {{8, 8}, {40, 8}, {.length = 3, .is_padding = true}};
  EXPECT_EQ(ToString(layout), "[8:16+40:48+pad 3, :] of [64, 32]");
  layout.flat = Range{128, 192};
  EXPECT_EQ(ToString(layout), "[8:16+40:48+pad 3, :] of [64, 32], elements 128:192");
}

TEST(ShardLayoutTest, CanonicalJoinsNeighbours) {
  ShardLayout layout = ShardLayout::Whole({9});
  layout.axes[0] = {{0, 3},
                    {7, 0},
                    {3, 2},
                    {.begin = 4, .length = 1, .is_padding = true},
                    {.length = 2, .is_padding = true},
                    {8, 1}};
  const ShardLayout canonical = Canonical(layout);
  EXPECT_EQ(ToString(canonical), "[0:5+pad 3+8:9] of [9]");
  EXPECT_EQ(PlacesOf(canonical), PlacesOf(layout));
}

}  // namespace

}  // namespace varve::internal
