// SPDX-License-Identifier: Apache-2.0
#include "cli/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace varve::internal::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kShape[] = {20, 6};

TEST(SliceTest, TakesEverythingByDefault) {
  const Slice slice = ParseSlice("", kShape).value();
  EXPECT_THAT(slice.ranges, ElementsAre(Range{0, 20}, Range{0, 6}));
  EXPECT_THAT(slice.shape, ElementsAre(20, 6));
  EXPECT_TRUE(ParseSlice("", {}).value().ranges.empty());
}

TEST(SliceTest, ReadsRanges) {
  EXPECT_THAT(ParseSlice("0:10,:", kShape).value().ranges, ElementsAre(Range{0, 10}, Range{0, 6}));
  EXPECT_THAT(ParseSlice(":5, -3:", kShape).value().ranges, ElementsAre(Range{0, 5}, Range{3, 6}));
  EXPECT_THAT(ParseSlice("5:-5", kShape).value().ranges, ElementsAre(Range{5, 15}, Range{0, 6}));
  EXPECT_THAT(ParseSlice("1:3:1,::", kShape).value().shape, ElementsAre(2, 6));
}

TEST(SliceTest, CutsRangesToTheAxisAsNumPyDoes) {
  EXPECT_THAT(ParseSlice("-100:100", kShape).value().shape, ElementsAre(20, 6));
  EXPECT_THAT(ParseSlice("15:100,100:", kShape).value().shape, ElementsAre(5, 0));
  const Slice backwards = ParseSlice("10:5", kShape).value();
  EXPECT_THAT(backwards.ranges, ElementsAre(Range{10, 10}, Range{0, 6}));
  EXPECT_THAT(backwards.shape, ElementsAre(0, 6));
}

TEST(SliceTest, IntegersDropTheirAxis) {
  const Slice slice = ParseSlice("3,-1", kShape).value();
  EXPECT_THAT(slice.ranges, ElementsAre(Range{3, 4}, Range{5, 6}));
  EXPECT_TRUE(slice.shape.empty());
  EXPECT_THAT(ParseSlice("-20", kShape).value().shape, ElementsAre(6));
}

std::string ErrorOf(std::string_view text) {
  const Result<Slice> slice = ParseSlice(text, kShape);
  EXPECT_EQ(slice.status().code(), StatusCode::kInvalidArgument) << text;
  return slice.status().message();
}

TEST(SliceTest, RejectsIntegersOutsideTheAxis) {
  EXPECT_THAT(ErrorOf("20"), HasSubstr("\"20\" is outside of its axis, which has 20 indices"));
  EXPECT_THAT(ErrorOf("-21"), HasSubstr("outside"));
}

TEST(SliceTest, RejectsSteps) {
  EXPECT_THAT(ErrorOf("::2"), HasSubstr("only a step of 1 is possible"));
  EXPECT_THAT(ErrorOf("::-1"), HasSubstr("only a step of 1 is possible"));
}

TEST(SliceTest, RejectsWhatIsNoSlice) {
  EXPECT_THAT(ErrorOf("a"), HasSubstr("neither an integer nor a range"));
  EXPECT_THAT(ErrorOf("1,"), HasSubstr("neither an integer nor a range"));
  EXPECT_THAT(ErrorOf("1.5:2"), HasSubstr("\"1.5\", which is no integer"));
  EXPECT_THAT(ErrorOf("1:2:3:4"), HasSubstr("more than two colons"));
  EXPECT_THAT(ErrorOf("99999999999999999999:"), HasSubstr("no integer"));
  EXPECT_THAT(ErrorOf(":,:,:"), HasSubstr("3 parts, but the tensor has only 2 axes"));
}

// The pieces follow each other without gap in row-major order of the box, and none is too large.
void ExpectPiecesCover(DType dtype, const std::vector<Range>& box, uint64_t max_bytes) {
  const auto bits = static_cast<uint64_t>(DTypeBits(dtype));
  int64_t expected_first = 0;
  for (const std::vector<Range>& piece : SplitIntoPieces(dtype, box, max_bytes)) {
    ASSERT_EQ(piece.size(), box.size());
    int64_t first = 0;  // the place of the piece's first element in the box
    for (size_t axis = 0; axis < box.size(); ++axis) {
      ASSERT_GE(piece[axis].begin, box[axis].begin);
      ASSERT_LE(piece[axis].end, box[axis].end);
      ASSERT_LT(piece[axis].begin, piece[axis].end);
      first = first * (box[axis].end - box[axis].begin) + piece[axis].begin - box[axis].begin;
    }
    const int64_t count = NumElementsOf(piece);
    EXPECT_EQ(first, expected_first);
    EXPECT_EQ(static_cast<uint64_t>(count) * bits % 8, 0u);
    if (bits >= 8) {
      EXPECT_LE(static_cast<uint64_t>(count) * bits / 8, std::max(max_bytes, bits / 8));
    }
    expected_first += count;
  }
  EXPECT_EQ(expected_first, NumElementsOf(box));
}

TEST(SplitIntoPiecesTest, CoversBoxesOfAllSizes) {
  std::mt19937 random(3);
  for (int i = 0; i < 3'000; ++i) {
    std::vector<Range> box;
    for (size_t axes = random() % 5; axes > 0; --axes) {
      const auto begin = static_cast<int64_t>(random() % 4);
      box.push_back({begin, begin + static_cast<int64_t>(random() % 8)});
    }
    const DType dtypes[] = {DType::kU8, DType::kF32, DType::kC64};
    ExpectPiecesCover(dtypes[random() % 3], box, 1 + random() % 200);
  }
}

TEST(SplitIntoPiecesTest, CutsSubByteTypesAtWholeBytes) {
  std::mt19937 random(4);
  for (int i = 0; i < 3'000; ++i) {
    std::vector<Range> box;
    for (size_t axes = 1 + random() % 4; axes > 0; --axes) {
      box.push_back({0, static_cast<int64_t>(1 + random() % 8)});
    }
    for (const DType dtype : {DType::kF4, DType::kF6E2M3}) {
      if (NumElementsOf(box) * DTypeBits(dtype) % 8 != 0) continue;
      ExpectPiecesCover(dtype, box, 1 + random() % 64);
    }
  }
}

TEST(SplitIntoPiecesTest, KeepsASmallBoxWhole) {
  const std::vector<Range> box = {{1, 5}, {0, 6}};
  EXPECT_THAT(SplitIntoPieces(DType::kF32, box, 96), ElementsAre(box));
  EXPECT_EQ(SplitIntoPieces(DType::kF32, box, 95).size(), 2u);
}

TEST(SplitIntoPiecesTest, CutsAVectorIntoLongPieces) {
  const std::vector<Range> box = {{0, int64_t{1} << 40}};
  EXPECT_EQ(SplitIntoPieces(DType::kBF16, box, uint64_t{1} << 31).size(), 1024u);
}

}  // namespace
}  // namespace varve::internal::cli
