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

TEST(SplitEvenlyTest, RowsAndColumns) {
  const ShardLayout weight = ShardLayout::Whole({6, 4});
  EXPECT_THAT(TextsOf(3, [&](RankOf tp) { return SplitEvenly(weight, 0, tp); }),
              ElementsAre("[0:2, :] of [6, 4]", "[2:4, :] of [6, 4]", "[4:6, :] of [6, 4]"));
  EXPECT_THAT(TextsOf(2, [&](RankOf tp) { return SplitEvenly(weight, 1, tp); }),
              ElementsAre("[:, 0:2] of [6, 4]", "[:, 2:4] of [6, 4]"));
  ExpectCoversOnce(2, [&](RankOf tp) { return SplitEvenly(weight, 1, tp); });
}

// Tests FSDP on top of tensor parallelism, and experts and their rows.
TEST(SplitEvenlyTest, CutsWhatIsCutAlready) {
  const auto twice = [](RankOf tp, RankOf fsdp) {
    return SplitChunks(*SplitFused(ShardLayout::Whole({12, 5}), 0, std::vector<int64_t>{8, 4}, tp),
                       0, fsdp);
  };
  EXPECT_EQ(ToString(*twice({1, 2}, {0, 2})), "[4:7, :] of [12, 5]");
  EXPECT_EQ(ToString(*twice({1, 2}, {1, 2})), "[7:8+10:12, :] of [12, 5]");
  const auto experts = [](RankOf ep, RankOf tp) {
    return SplitEvenly(*SplitEvenly(ShardLayout::Whole({4, 6, 3}), 0, ep), 1, tp);
  };
  EXPECT_EQ(ToString(*experts({1, 2}, {2, 3})), "[2:4, 4:6, :] of [4, 6, 3]");
  std::vector<ShardLayout> all;
  for (int64_t ep = 0; ep < 2; ++ep) {
    for (int64_t tp = 0; tp < 3; ++tp) all.push_back(*experts({ep, 2}, {tp, 3}));
  }
  ExpectCoversOnce(all);
}

TEST(SplitEvenlyTest, SaysWhatDoesNotFit) {
  const ShardLayout weight = ShardLayout::Whole({6, 4});
  EXPECT_THAT(SplitEvenly(weight, 1, {0, 3}),
              FailsWith(kInvalid, "axis 1 of 4 indices, expected a multiple of 3 ranks"));
  EXPECT_THAT(SplitEvenly(weight, 2, {0, 3}), FailsWith(kInvalid, "axis 2 of a tensor of 2 axes"));
  EXPECT_THAT(SplitEvenly(weight, 0, {3, 3}),
              FailsWith(kInvalid, "rank 3 of 3, expected 0 <= rank < ranks"));
  EXPECT_THAT(SplitEvenly(weight, 0, {0, 0}), FailsWith(kInvalid, "rank 0 of 0"));
  EXPECT_THAT(SplitEvenly(*SliceFlat(weight, {0, 2}), 0, {0, 2}),
              FailsWith(kInvalid, "[:, :] of [6, 4], elements 0:12 has a flat range"));
  ShardLayout wrong = weight;
  wrong.axes[0] = {{5, 2}};
  EXPECT_THAT(SplitEvenly(wrong, 0, {0, 1}), FailsWith(kInvalid, "axis 0: segment 5 + 2"));
}

TEST(PadToTest, PaddedVocabularies) {
  EXPECT_EQ(*PadTo(50257, 128), 50304);
  EXPECT_EQ(*PadTo(50257, int64_t{128} * 8), 51200);
  EXPECT_EQ(*PadTo(50304, 128), 50304);
  EXPECT_EQ(*PadTo(65535, 2), 65536);
  EXPECT_EQ(*PadTo(32003, 64), 32064);
  EXPECT_EQ(*PadTo(0, 64), 0);
  EXPECT_EQ(*PadTo(INT64_MAX, 1), INT64_MAX);
  EXPECT_THAT(PadTo(7, 0), FailsWith(kInvalid, "7 padded to a multiple of 0"));
  EXPECT_THAT(PadTo(-1, 2), FailsWith(kInvalid, "expected a size of at least 0"));
  EXPECT_THAT(PadTo(INT64_MAX, 2), FailsWith(kInvalid, "overflows int64"));
}

TEST(SplitPaddedTest, TheLastRankHoldsPadding) {
  const ShardLayout wte = ShardLayout::Whole({50257, 3});
  EXPECT_THAT(TextsOf(2, [&](RankOf tp) { return SplitPadded(wte, 0, 50304, tp); }),
              ElementsAre("[0:25152, :] of [50257, 3]", "[25152:50257+pad 47, :] of [50257, 3]"));
  EXPECT_THAT(
      TextsOf(2, [](RankOf tp) { return SplitPadded(ShardLayout::Whole({65535}), 0, 65536, tp); }),
      ElementsAre("[0:32768] of [65535]", "[32768:65535+pad 1] of [65535]"));
}

// 100 words on 64 ranks, padded to 128 * 64: one rank has all of them.
TEST(SplitPaddedTest, RanksWithPaddingOnly) {
  const auto make = [](RankOf tp) {
    return SplitPadded(ShardLayout::Whole({100, 2}), 0, *PadTo(100, 128 * tp.ranks), tp);
  };
  const std::vector<ShardLayout> layouts = LayoutsOf(64, make);
  EXPECT_EQ(ToString(layouts[0]), "[0:100+pad 28, :] of [100, 2]");
  EXPECT_EQ(ToString(layouts[63]), "[pad 128, :] of [100, 2]");
  EXPECT_EQ(layouts[63].NumLocal(), 256);
  EXPECT_EQ(layouts[63].NumHeld(), 0);
  ExpectCoversOnce(layouts);
}

// The words are the same, with the padding of each tp. tp 1 has none.
TEST(SplitPaddedTest, PaddingChangesWithTp) {
  const auto ranks_of = [](int64_t tp) {
    return LayoutsOf(tp, [](RankOf rank) {
      return SplitPadded(ShardLayout::Whole({50257}), 0,
                         rank.ranks == 1 ? 50257 : *PadTo(50257, 128 * rank.ranks), rank);
    });
  };
  for (const int64_t source : {1, 2, 8, 64}) {
    ExpectCoversOnce(ranks_of(source));
    for (const int64_t target : {1, 2, 8, 64}) ExpectReshards(ranks_of(source), ranks_of(target));
  }
}

TEST(SplitPaddedTest, SaysWhatDoesNotFit) {
  const ShardLayout wte = ShardLayout::Whole({50257, 3});
  EXPECT_THAT(SplitPadded(wte, 0, 50256, {0, 2}),
              FailsWith(kInvalid, "axis 0 of 50257 indices padded to 50256, expected at least"));
  EXPECT_THAT(SplitPadded(wte, 0, 50304, {0, 5}),
              FailsWith(kInvalid, "padded to 50304, expected a multiple of 5 ranks"));
  EXPECT_THAT(SplitPadded(ShardLayout::Whole({1, int64_t{1} << 60}), 0, 4, {0, 1}),
              FailsWith(kInvalid, "shard: "));
}

// torch.chunk does the same: 10 in 4 is 3 + 3 + 3 + 1, 5 in 4 is 2 + 2 + 1 + 0.
TEST(SplitChunksTest, UnevenAndEmpty) {
  EXPECT_THAT(TextsOf(4,
                      [](RankOf group) {
                        return SplitChunks(ShardLayout::Whole({10, 2}), 0, group);
                      }),
              ElementsAre("[0:3, :] of [10, 2]", "[3:6, :] of [10, 2]", "[6:9, :] of [10, 2]",
                          "[9:10, :] of [10, 2]"));
  EXPECT_THAT(TextsOf(4,
                      [](RankOf group) {
                        return SplitChunks(ShardLayout::Whole({2, 5}), 1, group);
                      }),
              ElementsAre("[:, 0:2] of [2, 5]", "[:, 2:4] of [2, 5]", "[:, 4:5] of [2, 5]",
                          "[:, 0:0] of [2, 5]"));
  EXPECT_EQ(SplitChunks(ShardLayout::Whole({2, 5}), 1, {3, 4})->LocalShape(),
            (std::vector<int64_t>{2, 0}));
  for (const int64_t ranks : {1, 2, 3, 7, 11, 64}) {
    for (const int64_t size : {0, 1, 7, 10, 64, 101}) {
      ExpectCoversOnce(ranks, [&](RankOf group) {
        return SplitChunks(ShardLayout::Whole({size, 2}), 0, group);
      });
    }
  }
  const auto far = SplitChunks(ShardLayout::Whole({5}), 0, {INT64_MAX - 1, INT64_MAX});
  EXPECT_EQ(far->NumLocal(), 0);
}

TEST(TakeIndicesTest, OfWhatARankHolds) {
  const ShardLayout gate_up =
      *SplitFused(ShardLayout::Whole({12}), 0, std::vector<int64_t>{6, 6}, {1, 2});
  EXPECT_EQ(ToString(*TakeIndices(gate_up, 0, {2, 5})), "[5:6+9:11] of [12]");
  EXPECT_EQ(TakeIndices(gate_up, 0, {6, 6})->NumLocal(), 0);
  EXPECT_THAT(TakeIndices(gate_up, 0, {2, 7}),
              FailsWith(kInvalid, "indices 2:7 of axis 0 of 6 indices"));
  EXPECT_THAT(TakeIndices(gate_up, 0, {2, 1}), FailsWith(kInvalid, "indices 2:1"));
  EXPECT_THAT(TakeIndices(gate_up, 0, {-1, 1}), FailsWith(kInvalid, "indices -1:1"));
}

TEST(SplitFusedTest, GateAndUpOnEitherAxis) {
  const std::vector<int64_t> gate_up{6, 6};
  EXPECT_THAT(TextsOf(2,
                      [&](RankOf tp) {
                        return SplitFused(ShardLayout::Whole({12, 5}), 0, gate_up, tp);
                      }),
              ElementsAre("[0:3+6:9, :] of [12, 5]", "[3:6+9:12, :] of [12, 5]"));
  const auto columns = [&](RankOf tp) {
    return SplitFused(ShardLayout::Whole({5, 12}), 1, gate_up, tp);
  };
  EXPECT_THAT(TextsOf(3, columns),
              ElementsAre("[:, 0:2+6:8] of [5, 12]", "[:, 2:4+8:10] of [5, 12]",
                          "[:, 4:6+10:12] of [5, 12]"));
  ExpectCoversOnce(3, columns);
  ExpectReshards(LayoutsOf(3, columns), LayoutsOf(2, columns));
}

TEST(SplitFusedTest, SaysWhatDoesNotFit) {
  const auto split = [](std::vector<int64_t> parts) {
    return SplitFused(ShardLayout::Whole({12}), 0, parts, {0, 2});
  };
  EXPECT_THAT(split({7, 5}), FailsWith(kInvalid, "a part of 7 on axis 0 of 12 indices, expected"));
  EXPECT_THAT(split({6, 4}), FailsWith(kInvalid, "parts of 10 indices together on axis 0 of 12"));
  EXPECT_THAT(split({6, 8}),
              FailsWith(kInvalid, "a part of 8 on axis 0 of 12 indices, which has 6"));
  EXPECT_THAT(split({-2, 14}), FailsWith(kInvalid, "a part of -2"));
}

}  // namespace

}  // namespace varve::internal
