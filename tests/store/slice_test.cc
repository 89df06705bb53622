// SPDX-License-Identifier: Apache-2.0
#include "store/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace varve {
namespace {

using ::testing::HasSubstr;

// The bytes of a slice, one by one.
std::vector<uint64_t> BytesOf(const SliceRuns& runs) {
  std::vector<uint64_t> bytes;
  for (uint64_t k = 0; k < runs.num_runs(); ++k) {
    for (uint64_t i = 0; i < runs.run_bytes(); ++i) bytes.push_back(runs.Begin(k) + i);
  }
  return bytes;
}

// The same by walking every index.
std::vector<uint64_t> ExpectedBytes(uint64_t element_bytes, const std::vector<int64_t>& shape,
                                    const std::vector<Range>& slice) {
  std::vector<uint64_t> bytes;
  std::vector<int64_t> index;
  for (const Range& r : slice) {
    if (r.begin == r.end) return bytes;
    index.push_back(r.begin);
  }
  while (true) {
    uint64_t flat = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      flat = flat * static_cast<uint64_t>(shape[i]) + static_cast<uint64_t>(index[i]);
    }
    for (uint64_t i = 0; i < element_bytes; ++i) bytes.push_back(flat * element_bytes + i);
    size_t axis = shape.size();
    while (axis > 0 && ++index[axis - 1] == slice[axis - 1].end) {
      index[axis - 1] = slice[axis - 1].begin;
      --axis;
    }
    if (axis == 0) return bytes;
  }
}

TEST(SliceRunsTest, RandomSlicesHaveTheBytesOfTheirIndices) {
  std::mt19937 random(11);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> shape;
    std::vector<Range> slice;
    for (int64_t axes = 1 + below(4); axes > 0; --axes) {
      const int64_t size = 1 + below(6);
      const int64_t begin = below(size + 1);
      shape.push_back(size);
      slice.push_back({begin, begin + below(size - begin + 1)});
    }
    const auto runs = SliceRuns::Make(DType::kF32, shape, slice);
    ASSERT_TRUE(runs.ok()) << runs.status().ToString();
    EXPECT_EQ(BytesOf(*runs), ExpectedBytes(4, shape, slice)) << "round " << round;
  }
}

TEST(SliceRunsTest, NoSliceIsTheWholeTensorInOneRun) {
  const std::vector<int64_t> shape = {3, 4, 5};
  const auto runs = SliceRuns::Make(DType::kBF16, shape, {});
  ASSERT_TRUE(runs.ok());
  EXPECT_EQ(runs->num_runs(), 1u);
  EXPECT_EQ(runs->total_bytes(), 120u);
}

TEST(SliceRunsTest, ScalarHasOneElement) {
  const auto runs = SliceRuns::Make(DType::kF64, {}, {});
  ASSERT_TRUE(runs.ok());
  EXPECT_EQ(runs->total_bytes(), 8u);
}

TEST(SliceRunsTest, EmptyTensorAndEmptyRangeHaveNoRuns) {
  const std::vector<int64_t> shape = {3, 0};
  const auto empty = SliceRuns::Make(DType::kF32, shape, {});
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->total_bytes(), 0u);
  const std::vector<int64_t> rows = {3, 4};
  const std::vector<Range> nothing = {{1, 1}, {0, 4}};
  const auto none = SliceRuns::Make(DType::kF32, rows, nothing);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->total_bytes(), 0u);
  EXPECT_EQ(none->FirstRunAfter(0), none->num_runs());
}

TEST(SliceRunsTest, FirstRunAfterFindsTheRunThatEndsLater) {
  const std::vector<int64_t> shape = {4, 10};
  const std::vector<Range> slice = {{1, 3}, {2, 5}};  // bytes 12..14 and 22..24
  const auto runs = SliceRuns::Make(DType::kU8, shape, slice);
  ASSERT_TRUE(runs.ok());
  EXPECT_EQ(runs->FirstRunAfter(0), 0u);
  EXPECT_EQ(runs->FirstRunAfter(14), 0u);
  EXPECT_EQ(runs->FirstRunAfter(15), 1u);
  EXPECT_EQ(runs->FirstRunAfter(24), 1u);
  EXPECT_EQ(runs->FirstRunAfter(25), 2u);
}

struct BadSlice {
  std::vector<Range> slice;
  const char* message;
};

TEST(SliceRunsTest, RefusesRangesThatAreNotInTheTensor) {
  const std::vector<int64_t> shape = {3, 4};
  const std::vector<BadSlice> bad = {
      {{{0, 3}}, "1 ranges"},          {{{0, 3}, {0, 4}, {0, 1}}, "3 ranges"},
      {{{0, 4}, {0, 4}}, "axis 0"},    {{{0, 3}, {2, 1}}, "2:1 of axis 1"},
      {{{-1, 3}, {0, 4}}, "-1:3"},     {{{0, 3}, {0, INT64_MAX}}, "axis 1"},
      {{{INT64_MIN, 3}, {0, 4}}, "axis 0"}};
  for (const BadSlice& b : bad) {
    const auto runs = SliceRuns::Make(DType::kF32, shape, b.slice);
    ASSERT_FALSE(runs.ok()) << b.message;
    EXPECT_EQ(runs.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(runs.status().message(), HasSubstr(b.message));
  }
}

TEST(SliceRunsTest, SubByteSlicesBeginAndEndOnWholeBytes) {
  const std::vector<int64_t> shape = {3, 4};
  const std::vector<Range> even = {{0, 3}, {2, 4}};
  const std::vector<Range> odd = {{0, 3}, {1, 3}};
  ASSERT_TRUE(SliceRuns::Make(DType::kF4, shape, even).ok());
  EXPECT_EQ(SliceRuns::Make(DType::kF4, shape, odd).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(SliceRuns::Make(DType::kF6E2M3, shape, even).status().code(),
            StatusCode::kInvalidArgument);
  const std::vector<Range> rows = {{1, 2}, {0, 4}};
  const auto row = SliceRuns::Make(DType::kF6E2M3, shape, rows);
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(row->Begin(0), 3u);
  EXPECT_EQ(row->total_bytes(), 3u);
}

}  // namespace
}  // namespace varve
