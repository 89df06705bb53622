// SPDX-License-Identifier: Apache-2.0
#include "varve/tensor.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace varve::internal {

namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(DTypeTest, NamesAndBitsRoundTrip) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_GT(DTypeBits(dtype), 0) << i;
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype) << i;
  }
  EXPECT_EQ(DTypeName(DType::kF8E4M3), "F8_E4M3");
}

TEST(DTypeTest, UnknownValuesAreRefused) {
  EXPECT_EQ(DTypeBits(static_cast<DType>(20)), 0);
  EXPECT_EQ(DTypeName(static_cast<DType>(255)), "?");
  EXPECT_EQ(ParseDType("bf16"), std::nullopt);
  EXPECT_EQ(ParseDType(""), std::nullopt);
}

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(*NumElements({}), 1);
  EXPECT_EQ(*NumElements(std::vector<int64_t>{3, 4}), 12);
  EXPECT_EQ(*NumElements(std::vector<int64_t>{3, 0, kMax, kMax}), 0);
  EXPECT_EQ(*NumElements(std::vector<int64_t>{kMax}), kMax);
}

TEST(ShapeTest, RefusesNegativeAxesAndOverflow) {
  EXPECT_EQ(NumElements(std::vector<int64_t>{0, -1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(NumElements(std::vector<int64_t>{kMax, 2}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ShapeTest, CountsBytes) {
  EXPECT_EQ(*NumBytes(DType::kF32, std::vector<int64_t>{3, 4}), 48u);
  EXPECT_EQ(*NumBytes(DType::kF4, std::vector<int64_t>{4}), 2u);
  EXPECT_EQ(*NumBytes(DType::kF6E2M3, std::vector<int64_t>{4}), 3u);
  EXPECT_EQ(*NumBytes(DType::kC64, std::vector<int64_t>{}), 8u);
}

TEST(ShapeTest, RefusesPartBytesOverflowAndUnknownDTypes) {
  EXPECT_FALSE(NumBytes(DType::kF4, std::vector<int64_t>{3}).ok());
  EXPECT_FALSE(NumBytes(DType::kF6E3M2, std::vector<int64_t>{2}).ok());
  EXPECT_FALSE(NumBytes(DType::kF64, std::vector<int64_t>{kMax / 2}).ok());
  EXPECT_FALSE(NumBytes(static_cast<DType>(99), {}).ok());
}

TEST(NameTest, AcceptsUtf8UpToTheLimit) {
  EXPECT_TRUE(ValidateName("tensor name", "a/b c.0").ok());
  EXPECT_TRUE(ValidateName("tensor name", "gewicht-\xC3\xA4-\xE2\x82\xAC-\xF0\x9F\x98\x80").ok());
  EXPECT_TRUE(ValidateName("tensor name", std::string(kMaxNameBytes, 'x')).ok());
}

TEST(NameTest, SaysWhichRuleIsBrokenAndWhere) {
  using std::string_literals::operator""s;
  EXPECT_EQ(ValidateName("tensor name", "").message(), "tensor name is empty");
  EXPECT_EQ(ValidateName("run", std::string(kMaxNameBytes + 1, 'x')).message(),
            "run has 1025 bytes, expected at most 1024");
  EXPECT_EQ(ValidateName("run", "a\0b"s).message(), "run has a NUL at byte 1");
  EXPECT_EQ(ValidateName("run", "ab\xFF").message(), "run is not UTF-8 at byte 2");
}

TEST(NameTest, RefusesMalformedUtf8) {
  for (const char* name : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xC3", "\xE0\x80\xAF", "\xE2\x82",
                           "\xED\xA0\x80", "\xF0\x80\x80\xAF", "\xF4\x90\x80\x80", "\xF5\x80"}) {
    EXPECT_EQ(ValidateName("name", name).code(), StatusCode::kInvalidArgument) << name;
  }
}

}  // namespace

}  // namespace varve::internal
