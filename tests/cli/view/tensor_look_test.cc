// SPDX-License-Identifier: Apache-2.0
#include "cli/view/tensor_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace varve::internal::cli {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TensorLook LookAtFloats(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  return LookAt(DType::kF32, shape, std::as_bytes(std::span(values)));
}

uint64_t Sum(const std::vector<uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

TEST(TensorLookTest, CountsWhatIsNoNumberAndLeavesItOut) {
  const auto look = LookAtFloats({3, kNan, -4, kInfinity, 0, -kInfinity, -0.0f}, {7});
  EXPECT_EQ(look.num_elements, 7u);
  EXPECT_EQ(look.num_nans, 1u);
  EXPECT_EQ(look.num_infinite, 2u);
  EXPECT_EQ(look.num_zeros, 2u);
  EXPECT_DOUBLE_EQ(look.norm, 5);
  EXPECT_EQ(look.low, -4);
  EXPECT_EQ(look.high, 3);
  EXPECT_EQ(Sum(look.histogram), 4u);
  EXPECT_EQ(look.histogram.front(), 1u);
  EXPECT_EQ(look.histogram.back(), 1u);
}

TEST(TensorLookTest, WithoutAFiniteValueThereIsNoPicture) {
  for (const auto& values : {std::vector<float>{}, {kNan, kNan}, {kInfinity}}) {
    const auto look = LookAtFloats(values, {static_cast<int64_t>(values.size())});
    EXPECT_EQ(look.num_elements, values.size());
    EXPECT_THAT(look.histogram, IsEmpty());
    EXPECT_THAT(look.heat, IsEmpty());
  }
}

TEST(TensorLookTest, EqualValuesAreOneBin) {
  const auto look = LookAtFloats({2, 2, 2}, {3});
  EXPECT_THAT(look.histogram, ElementsAre(3));
  EXPECT_THAT(look.heat, ElementsAre(2, 2, 2));
}

TEST(TensorLookTest, AWidthThatOverflowsIsOneBinOfMany) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const std::vector<double> values = {-kMost, kMost};
  const auto look = LookAt(DType::kF64, std::vector<int64_t>{2}, std::as_bytes(std::span(values)));
  EXPECT_EQ(Sum(look.histogram), 2u);
}

TEST(TensorLookTest, CellsAreMeansOfNeighbours) {
  std::vector<float> values(256 * 256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i / 256);
  const auto look = LookAtFloats(values, {16, 16, 256});
  EXPECT_EQ(look.heat_rows, kMaxHeatRows);
  EXPECT_EQ(look.heat_columns, kMaxHeatColumns);
  ASSERT_THAT(look.heat, SizeIs(kMaxHeatRows * kMaxHeatColumns));
  for (uint64_t row = 0; row < kMaxHeatRows; ++row) {
    const auto begin = look.heat.begin() + static_cast<ptrdiff_t>(row * kMaxHeatColumns);
    EXPECT_THAT(std::vector<double>(begin, begin + kMaxHeatColumns),
                Each(static_cast<double>(row) * 4 + 1.5));
  }
}

TEST(TensorLookTest, ACellWithoutANumberIsNan) {
  const auto look = LookAtFloats({1, kNan, 3, 4}, {2, 2});
  EXPECT_EQ(look.heat[0], 1);
  EXPECT_TRUE(std::isnan(look.heat[1]));
  EXPECT_EQ(look.heat_rows, 2u);
}

TEST(TensorLookTest, ScalarsAndEveryDTypeThatIsNotComplex) {
  EXPECT_THAT(LookAtFloats({7}, {}).heat, ElementsAre(7));
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kC64) continue;
    const std::vector<std::byte> zeros(NumBytes(dtype, std::vector<int64_t>{20'000}).value());
    const auto look = LookAt(dtype, std::vector<int64_t>{20'000}, zeros);
    EXPECT_EQ(look.num_elements, 20'000u) << DTypeName(dtype);
    EXPECT_EQ(Sum(look.histogram), 20'000u) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace varve::internal::cli
