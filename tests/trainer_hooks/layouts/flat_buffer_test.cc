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

// Returns what the ranks hold of one tensor of a buffer.
testing::MakeLayout SliceOf(const FlatBuffer& buffer, std::span<const int64_t> sizes,
                            size_t index) {
  return [&buffer, sizes, index](RankOf group) {
    return SliceOfBuffer(ShardLayout::Whole({sizes[index]}), buffer, index, group);
  };
}

// 64 elements of 4 bytes x 2 ranks: 100 elements lie in 128, 300 in 384, 1 in 128. The ranks have
// 320 each, so that the second tensor lies on both.
TEST(FusePaddedTest, ATensorAcrossRanks) {
  const std::vector<int64_t> sizes{100, 300, 1};
  const FlatBuffer buffer = *FusePadded(sizes, 4, 2);
  EXPECT_THAT(buffer.tensors, ElementsAre(Range{0, 128}, Range{128, 512}, Range{512, 640}));
  EXPECT_THAT(buffer.buckets, ElementsAre(Range{0, 640}));
  EXPECT_THAT(TextsOf(2, SliceOf(buffer, sizes, 0)),
              ElementsAre("[:] of [100], elements 0:128", "[:] of [100], elements 128:128"));
  EXPECT_THAT(TextsOf(2, SliceOf(buffer, sizes, 1)),
              ElementsAre("[:] of [300], elements 0:192", "[:] of [300], elements 192:384"));
  EXPECT_THAT(TextsOf(2, SliceOf(buffer, sizes, 2)),
              ElementsAre("[:] of [1], elements 0:0", "[:] of [1], elements 0:128"));
}

// With 3 ranks of 2-byte elements: 385 elements are padded to 768, so that the last rank holds
// nothing but padding.
TEST(FusePaddedTest, ARankWithPaddingOnly) {
  const std::vector<int64_t> sizes{385};
  const FlatBuffer buffer = *FusePadded(sizes, 2, 3);
  const auto layouts = LayoutsOf(3, SliceOf(buffer, sizes, 0));
  EXPECT_EQ(ToString(layouts[1]), "[:] of [385], elements 256:512");
  EXPECT_EQ(layouts[1].NumHeld(), 129);
  EXPECT_EQ(ToString(layouts[2]), "[:] of [385], elements 512:768");
  EXPECT_EQ(layouts[2].NumHeld(), 0);
  EXPECT_EQ(layouts[2].NumLocal(), 256);
}

TEST(FusePaddedTest, DegreesChange) {
  const std::vector<int64_t> sizes{1, 63, 64, 65, 127, 0, 1009, 255, 256, 257};
  std::vector<FlatBuffer> buffers;
  const std::vector<int64_t> degrees{1, 2, 3, 4};
  for (const int64_t degree : degrees) buffers.push_back(*FusePadded(sizes, 4, degree));
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (size_t a = 0; a < degrees.size(); ++a) {
      const auto source = LayoutsOf(degrees[a], SliceOf(buffers[a], sizes, i));
      ExpectCoversOnce(source);
      for (size_t b = 0; b < degrees.size(); ++b) {
        ExpectReshards(source, LayoutsOf(degrees[b], SliceOf(buffers[b], sizes, i)));
      }
    }
  }
}

// The order is from the last to the first: 70 at 0, 1 at 128 (70 aligned), 100 at 192. The bucket
// of at least 200 ends at 292, padded to 384. Then comes 10 in a bucket of 128.
TEST(FuseInBucketsTest, RealOffsets) {
  const std::vector<int64_t> sizes{10, 100, 1, 70};
  const FlatBuffer buffer = *FuseInBuckets(sizes, 200, 2);
  EXPECT_THAT(buffer.tensors,
              ElementsAre(Range{384, 394}, Range{192, 292}, Range{128, 129}, Range{0, 70}));
  EXPECT_THAT(buffer.buckets, ElementsAre(Range{0, 384}, Range{384, 512}));
  // Rank 0 has 0:192 of the first bucket.
  EXPECT_THAT(TextsOf(2, SliceOf(buffer, sizes, 1)),
              ElementsAre("[:] of [100], elements 0:0", "[:] of [100], elements 0:100"));
  EXPECT_THAT(TextsOf(2, SliceOf(buffer, sizes, 0)),
              ElementsAre("[:] of [10], elements 0:10", "[:] of [10], elements 10:10"));
}

TEST(FuseInBucketsTest, BucketsArePaddedForTheRanks) {
  const std::vector<int64_t> sizes{1000};
  EXPECT_THAT(FuseInBuckets(sizes, 1000000, 1)->buckets, ElementsAre(Range{0, 1024}));
  EXPECT_THAT(FuseInBuckets(sizes, 1000000, 3)->buckets, ElementsAre(Range{0, 1152}));
  EXPECT_THAT(FuseInBuckets(sizes, 1000000, 3, true)->buckets,
              ElementsAre(Range{0, int64_t{3} * 65536}));
  EXPECT_THAT(FuseInBuckets({}, 1000000, 3)->buckets, ElementsAre());
}

TEST(FuseInBucketsTest, EveryTensorIsCoveredOnce) {
  const std::vector<int64_t> sizes{1, 63, 1000003, 64, 0, 65, 999999, 1, 1000000, 7};
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    const FlatBuffer buffer = *FuseInBuckets(sizes, 1000000, ranks);
    EXPECT_EQ(buffer.buckets.size(), 4u);
    for (size_t i = 0; i < sizes.size(); ++i) ExpectCoversOnce(ranks, SliceOf(buffer, sizes, i));
  }
}

// A tensor of two ranks in tp, whose halves lie in the buffers of two ranks of dp.
TEST(SliceOfBufferTest, OfTpShards) {
  std::vector<ShardLayout> all;
  for (int64_t tp = 0; tp < 2; ++tp) {
    const ShardLayout local = *SplitEvenly(ShardLayout::Whole({11, 6}), 1, {tp, 2});
    const std::vector<int64_t> sizes{local.NumLocal(), 40};
    const FlatBuffer buffer = *FuseInBuckets(sizes, 1000, 2);
    for (int64_t dp = 0; dp < 2; ++dp) {
      all.push_back(*SliceOfBuffer(local, buffer, 0, {dp, 2}));
    }
  }
  EXPECT_EQ(ToString(all[2]), "[:, 3:6] of [11, 6], elements 0:0");
  EXPECT_EQ(ToString(all[3]), "[:, 3:6] of [11, 6], elements 0:33");
  ExpectCoversOnce(all);
}

TEST(SliceOfBufferTest, SaysWhatDoesNotFit) {
  const FlatBuffer buffer{.tensors = {{0, 10}, {10, 30}}, .buckets = {{0, 20}, {20, 40}}};
  const auto slice = [&](int64_t size, size_t index, RankOf group) {
    return SliceOfBuffer(ShardLayout::Whole({size}), buffer, index, group);
  };
  EXPECT_THAT(slice(10, 2, {0, 2}), FailsWith(kInvalid, "tensor 2 of a buffer of 2"));
  EXPECT_THAT(slice(20, 1, {0, 2}),
              FailsWith(kInvalid, "tensor 1 lies at [10, 30), expected one bucket"));
  EXPECT_THAT(slice(11, 0, {0, 2}),
              FailsWith(kInvalid, "lies at [0, 10) of the buffer, its layout has 11 elements"));
  EXPECT_THAT(slice(10, 0, {0, 3}),
              FailsWith(kInvalid, "the bucket [0, 20), expected a multiple of 3 ranks"));
  EXPECT_THAT(slice(10, 0, {2, 2}), FailsWith(kInvalid, "rank 2 of 2"));
}

TEST(FlatBufferTest, SaysWhichSizesAreWrong) {
  const std::vector<int64_t> negative{4, -1}, huge{int64_t{1} << 60, 1};
  EXPECT_THAT(FusePadded(negative, 4, 2), FailsWith(kInvalid, "tensor 1 of -1 elements"));
  EXPECT_THAT(FuseInBuckets(huge, 1, 2), FailsWith(kInvalid, "expected sizes of up to 2^60"));
  EXPECT_THAT(FusePadded(huge, 4, 0), FailsWith(kInvalid, "0 ranks"));
  EXPECT_THAT(FusePadded({}, 5, 1), FailsWith(kInvalid, "elements of 5 bytes"));
}

}  // namespace

}  // namespace varve::internal
