// SPDX-License-Identifier: Apache-2.0
#include "base/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>

namespace varve::internal {

namespace {

std::span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Decode(DType dtype, uint32_t bits) { return DecodeFloat16OrLess(dtype, bits); }

TEST(NumberTest, DecodesBF16) {
  EXPECT_EQ(Decode(DType::kBF16, 0x3f80), 1.0);
  EXPECT_EQ(Decode(DType::kBF16, 0xc049), -3.140625);
  EXPECT_EQ(Decode(DType::kBF16, 0x7f80), kInfinity);
  EXPECT_TRUE(std::isnan(Decode(DType::kBF16, 0x7fc0)));
}

TEST(NumberTest, DecodesF16) {
  EXPECT_EQ(Decode(DType::kF16, 0x3c00), 1.0);
  EXPECT_EQ(Decode(DType::kF16, 0x7bff), 65504.0);
  EXPECT_EQ(Decode(DType::kF16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(Decode(DType::kF16, 0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(Decode(DType::kF16, 0x7c01)));
  EXPECT_TRUE(std::signbit(Decode(DType::kF16, 0x8000)));
}

TEST(NumberTest, DecodesF8) {
  EXPECT_EQ(Decode(DType::kF8E4M3, 0x7e), 448.0);
  EXPECT_EQ(Decode(DType::kF8E4M3, 0x01), std::ldexp(1.0, -9));
  EXPECT_TRUE(std::isnan(Decode(DType::kF8E4M3, 0x7f)));
  EXPECT_EQ(Decode(DType::kF8E5M2, 0x7b), 57344.0);
  EXPECT_EQ(Decode(DType::kF8E5M2, 0x7c), kInfinity);
  EXPECT_TRUE(std::isnan(Decode(DType::kF8E5M2, 0xfd)));
  EXPECT_EQ(Decode(DType::kF8E8M0, 127), 1.0);
  EXPECT_EQ(Decode(DType::kF8E8M0, 0), std::ldexp(1.0, -127));
  EXPECT_TRUE(std::isnan(Decode(DType::kF8E8M0, 255)));
}

TEST(NumberTest, DecodesSmallerFloats) {
  const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t bits = 0; bits < 8; ++bits) {
    EXPECT_EQ(Decode(DType::kF4, bits), values[bits]);
    EXPECT_EQ(Decode(DType::kF4, bits | 8), -values[bits]);
  }
  EXPECT_EQ(Decode(DType::kF6E2M3, 0x1f), 7.5);
  EXPECT_EQ(Decode(DType::kF6E2M3, 0x01), 0.125);
  EXPECT_EQ(Decode(DType::kF6E3M2, 0x1f), 28.0);
  EXPECT_EQ(Decode(DType::kF6E3M2, 0x21), -0.0625);
}

TEST(NumberTest, UnpacksElementsBelowAByteFromTheLowBits) {
  const Numbers four = DecodeNumbers(DType::kF4, AsBytes("\x21"));
  EXPECT_EQ(four, Numbers(std::vector<double>{0.5, 1.0}));
  // 0x01, 0x02, 0x03, 0x3f packed into 24 bits.
  const uint32_t packed = 0x01 | 0x02 << 6 | 0x03 << 12 | 0x3fu << 18;
  const char bytes[] = {static_cast<char>(packed), static_cast<char>(packed >> 8),
                        static_cast<char>(packed >> 16)};
  const Numbers six = DecodeNumbers(DType::kF6E2M3, AsBytes({bytes, 3}));
  EXPECT_EQ(six, Numbers(std::vector<double>{0.125, 0.25, 0.375, -7.5}));
}

TEST(NumberTest, KeepsAllBitsOfIntegers) {
  const std::string_view ones("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  EXPECT_EQ(DecodeNumbers(DType::kU64, AsBytes(ones)), Numbers(std::vector<uint64_t>{UINT64_MAX}));
  EXPECT_EQ(DecodeNumbers(DType::kI64, AsBytes(ones)), Numbers(std::vector<int64_t>{-1}));
  EXPECT_EQ(DecodeNumbers(DType::kI8, AsBytes("\x80")), Numbers(std::vector<int64_t>{-128}));
  EXPECT_EQ(DecodeNumbers(DType::kBool, AsBytes("\x01")), Numbers(std::vector<uint64_t>{1}));
}

TEST(NumberTest, GivesTwoNumbersForAComplexElement) {
  const std::string_view one_minus_two("\0\0\x80\x3f\0\0\0\xc0", 8);
  EXPECT_EQ(DecodeNumbers(DType::kC64, AsBytes(one_minus_two)),
            Numbers(std::vector<double>{1.0, -2.0}));
}

TEST(NumberTest, DecodesEveryDtype) {
  const std::string bytes(48, '\x11');
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const size_t numbers = size_t{48} * 8 / static_cast<size_t>(DTypeBits(dtype));
    const size_t found = std::visit([](const auto& decoded) { return decoded.size(); },
                                    DecodeNumbers(dtype, AsBytes(bytes)));
    EXPECT_EQ(found, dtype == DType::kC64 ? 2 * numbers : numbers) << DTypeName(dtype);
  }
}

}  // namespace

}  // namespace varve::internal
