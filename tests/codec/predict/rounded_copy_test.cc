// SPDX-License-Identifier: Apache-2.0
#include "codec/predict/rounded_copy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/codec/codec_testing.h"

namespace varve::internal {

namespace {

using testing::Bytes;
using testing::ToBytes;

// The level of this machine and the portable one.
const CpuLevel kLevels[] = {CpuLevel::kPortable, DetectCpu()};

std::vector<uint16_t> Rounded(DType dtype, const std::vector<uint32_t>& bits, CpuLevel level) {
  std::vector<uint16_t> copy(bits.size());
  MakeRoundedCopy(dtype, ToBytes(bits), std::as_writable_bytes(std::span(copy)), level);
  return copy;
}

// Returns every 16-bit value as an exact float, and floats a little to both sides of it and of the
// ties.
std::vector<uint32_t> InterestingBits() {
  std::vector<uint32_t> bits;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, 0x1000u,
                               0x0FFFu, 0x1001u, 0x2000u, 0x3000u, 0xF000u}) {
      bits.push_back(high << 16 | low);
    }
  }
  return bits;
}

TEST(RoundedCopyTest, LevelsAgree) {
  const std::vector<uint32_t> bits = InterestingBits();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    EXPECT_EQ(Rounded(dtype, bits, kLevels[0]), Rounded(dtype, bits, kLevels[1]));
  }
}

TEST(RoundedCopyTest, Bf16RoundsToNearestEven) {
  const std::vector<uint32_t> bits = {0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF,
                                      0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x80000000,
                                      0x00008000, 0x00018000, 0x00000001};
  const std::vector<uint16_t> wanted = {0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x7F80, 0xFF80,
                                        0x7FC0, 0x7FC0, 0x8000, 0x0000, 0x0002, 0x0000};
  EXPECT_EQ(Rounded(DType::kBF16, bits, kLevels[0]), wanted);
}

// Compared with the definition, in doubles: the nearest of the two neighbours, ties to even.
TEST(RoundedCopyTest, F16IsTheNearestValue) {
  const auto value_of = [](uint16_t half) {
    const int exponent = (half >> 10) & 31;
    const int mantissa = half & 1023;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return (half & 0x8000) != 0 ? -magnitude : magnitude;
  };
  const std::vector<uint32_t> bits = InterestingBits();
  const std::vector<uint16_t> halves = Rounded(DType::kF16, bits, kLevels[0]);
  for (size_t i = 0; i < bits.size(); ++i) {
    const double x = std::bit_cast<float>(bits[i]);
    if (!(std::abs(x) < 65520.0)) continue;  // infinity and NaN are listed below
    const uint16_t half = halves[i];
    ASSERT_EQ(half >> 15, bits[i] >> 31);
    const double error = std::abs(value_of(half) - x);
    for (const int neighbour : {-1, 1}) {
      const int other = (half & 0x7FFF) + neighbour;
      if (other < 0 || other >= 0x7C00) continue;
      const double other_error =
          std::abs(value_of(static_cast<uint16_t>((half & 0x8000) | other)) - x);
      ASSERT_LE(error, other_error) << std::hex << bits[i];
      ASSERT_TRUE(error != other_error || half % 2 == 0) << std::hex << bits[i];
    }
  }
}

TEST(RoundedCopyTest, F16KeepsInfinitiesAndQuietsNans) {
  const std::vector<uint32_t> bits = {0x7F800000, 0xFF800000, 0x477FF000, 0x477FEFFF,
                                      0x7F800001, 0xFFC02000, 0x7FFFFFFF};
  const std::vector<uint16_t> wanted = {0x7C00, 0xFC00, 0x7C00, 0x7BFF, 0x7E00, 0xFE01, 0x7FFF};
  EXPECT_EQ(Rounded(DType::kF16, bits, kLevels[0]), wanted);
}

TEST(RoundedCopyTest, SeesASingleWrongBitAnywhere) {
  for (const size_t n : {1, 7, 8, 9, 4095, 4096, 4097, 10000}) {
    const std::vector<float> source = testing::Weights(n, n);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Bytes copy = dtype == DType::kBF16 ? testing::ToBf16(source) : testing::ToF16(source);
      for (const CpuLevel level : kLevels) {
        EXPECT_TRUE(IsRoundedCopy(dtype, ToBytes(source), copy, level));
        for (const size_t at : {size_t{0}, n, 2 * n - 1}) {
          copy[at] ^= std::byte{1};
          EXPECT_FALSE(IsRoundedCopy(dtype, ToBytes(source), copy, level)) << n << " " << at;
          copy[at] ^= std::byte{1};
        }
      }
    }
  }
}

TEST(RoundedCopyTest, RefusesOtherSizesAndDTypes) {
  const Bytes source(16);
  EXPECT_FALSE(IsRoundedCopy(DType::kBF16, source, Bytes(6)));
  EXPECT_FALSE(IsRoundedCopy(DType::kI16, source, Bytes(8)));
  EXPECT_TRUE(IsRoundedCopy(DType::kBF16, source, Bytes(8)));
  EXPECT_FALSE(IsRoundedCopy(DType::kBF16, Bytes(2), Bytes(1)));
  EXPECT_FALSE(HasRoundedCopy(DType::kF8E4M3));
}

}  // namespace

}  // namespace varve::internal
