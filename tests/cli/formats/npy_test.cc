// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace varve::internal::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string HeaderOf(DType dtype, std::vector<int64_t> shape) {
  return BuildNpyHeader(NpyTypeOf(dtype, shape));
}

TEST(NpyTest, BuildsWhatNumPyWrites) {
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  expected.resize(127, ' ');
  EXPECT_EQ(HeaderOf(DType::kF32, {2, 3}), expected + "\n");
}

TEST(NpyTest, WritesShapesAsPythonTuples) {
  EXPECT_THAT(HeaderOf(DType::kU8, {}), HasSubstr("'shape': (), }"));
  EXPECT_THAT(HeaderOf(DType::kU8, {7}), HasSubstr("'shape': (7,), }"));
  EXPECT_THAT(HeaderOf(DType::kU8, {7, 0, 1}), HasSubstr("'shape': (7, 0, 1), }"));
}

TEST(NpyTest, PadsToAMultipleOf64) {
  for (size_t axes = 0; axes < 60; ++axes) {
    EXPECT_EQ(HeaderOf(DType::kU8, std::vector<int64_t>(axes, 1)).size() % 64, 0u) << axes;
  }
}

TEST(NpyTest, TakesVersion2ForLongShapes) {
  const std::string header = HeaderOf(DType::kU8, std::vector<int64_t>(30'000, 1));
  EXPECT_THAT(header, StartsWith(std::string("\x93NUMPY\x02\x00", 8)));
  EXPECT_EQ(header.size() % 64, 0u);
}

TEST(NpyTest, GivesRawBitsWhereNumPyHasNoType) {
  EXPECT_FALSE(NpyTypeOf(DType::kBF16, {}).exact);
  EXPECT_EQ(NpyTypeOf(DType::kBF16, {}).descr, "<u2");
  EXPECT_EQ(NpyTypeOf(DType::kF8E4M3, {}).descr, "|u1");
  const std::vector<int64_t> shape = {2, 8};
  EXPECT_THAT(NpyTypeOf(DType::kF4, shape).shape, ElementsAre(8));
  EXPECT_THAT(NpyTypeOf(DType::kF6E2M3, shape).shape, ElementsAre(12));
  EXPECT_TRUE(NpyTypeOf(DType::kC64, shape).exact);
  EXPECT_EQ(NpyTypeOf(DType::kC64, shape).descr, "<c8");
}

}  // namespace
}  // namespace varve::internal::formats
