// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace varve::internal {

namespace {

constexpr DType kFloats[] = {DType::kF64, DType::kF32,    DType::kBF16,
                             DType::kF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr DType kSmall[] = {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2};

// One element.
uint64_t ConvertBits(DType from, uint64_t bits, DType to) {
  uint64_t result = 0;
  Convert(from, {reinterpret_cast<const std::byte*>(&bits), size_t(DTypeBits(from)) / 8}, to,
          {reinterpret_cast<std::byte*>(&result), size_t(DTypeBits(to)) / 8});
  return result;
}

template <typename To, typename From>
To As(From from) {
  To to;
  static_assert(sizeof(to) == sizeof(from));
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// The value of a small float, worked out from its definition.
double ValueOf(DType dtype, uint64_t bits) {
  const int width = DTypeBits(dtype);
  const int exponent_bits = dtype == DType::kBF16 ? 8 : dtype == DType::kF8E4M3 ? 4 : 5;
  const int mantissa_bits = width - 1 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits >> (width - 1)) != 0 ? -1 : 1;
  const int top = (1 << exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & top;
  const auto mantissa = static_cast<double>(bits & ((uint64_t{1} << mantissa_bits) - 1));
  const double one = std::ldexp(1.0, mantissa_bits);
  const bool has_infinity = dtype != DType::kF8E4M3;
  if (exponent == top && has_infinity && mantissa == 0) return sign * INFINITY;
  if (exponent == top && (has_infinity || mantissa == one - 1)) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa / one, 1 - bias);
  return sign * std::ldexp(1 + mantissa / one, exponent - bias);
}

// The NaN that a narrowed NaN becomes.
uint64_t MadeQuiet(DType dtype, uint64_t nan) {
  if (dtype == DType::kBF16) return 0x7FC0;
  if (dtype == DType::kF16) return nan | 0x200;
  return dtype == DType::kF8E5M2 ? nan | 2 : nan;
}

TEST(ConvertTest, AllSmallValuesRoundTripThroughWiderTypes) {
  for (const DType dtype : kSmall) {
    for (const DType wide : {DType::kF32, DType::kF64}) {
      for (uint64_t bits = 0; bits < uint64_t{1} << DTypeBits(dtype); ++bits) {
        const uint64_t widened = ConvertBits(dtype, bits, wide);
        const double value =
            wide == DType::kF32 ? As<float>(static_cast<uint32_t>(widened)) : As<double>(widened);
        const double expected = ValueOf(dtype, bits);
        const bool is_nan = std::isnan(expected);
        ASSERT_EQ(std::isnan(value), is_nan) << DTypeName(dtype) << " " << bits;
        if (!is_nan) {
          ASSERT_EQ(value, expected) << DTypeName(dtype) << " " << bits;
          ASSERT_EQ(std::signbit(value), std::signbit(expected));
        }
        ASSERT_EQ(ConvertBits(wide, widened, dtype), is_nan ? MadeQuiet(dtype, bits) : bits)
            << DTypeName(dtype) << " " << bits;
      }
    }
  }
}

// All values of a small type, and what is between two neighbours: below the middle, it, above it.
TEST(ConvertTest, NarrowingRoundsToNearestTiesToEven) {
  for (const DType dtype : kSmall) {
    const uint64_t end = uint64_t{1} << (DTypeBits(dtype) - 1);
    for (uint64_t bits = 0; bits + 1 < end; ++bits) {
      const double low = ValueOf(dtype, bits);
      const double high = ValueOf(dtype, bits + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) break;
      const double middle = (low + high) / 2;
      const uint64_t even = bits % 2 == 0 ? bits : bits + 1;
      const uint64_t sign = end;
      const auto narrow = [dtype](double value) {
        return ConvertBits(DType::kF64, As<uint64_t>(value), dtype);
      };
      ASSERT_EQ(narrow(middle), even) << DTypeName(dtype) << " " << bits;
      ASSERT_EQ(narrow(std::nextafter(middle, low)), bits);
      ASSERT_EQ(narrow(std::nextafter(middle, high)), bits + 1);
      ASSERT_EQ(narrow(-middle), even | sign);
      // The middle has one bit more, which FP32 holds.
      const auto from_f32 = As<uint32_t>(static_cast<float>(middle));
      ASSERT_EQ(ConvertBits(DType::kF32, from_f32, dtype), even) << DTypeName(dtype) << " " << bits;
    }
  }
}

TEST(ConvertTest, TooLargeBecomesInfinityOrNanWhereThereIsNone) {
  struct Case {
    DType dtype;
    double largest;
    double middle;  // to the next, which is none
    uint64_t largest_bits;
    uint64_t above;
  };
  const Case cases[] = {{DType::kF16, 65504, 65520, 0x7BFF, 0x7C00},
                        {DType::kBF16, 0x1.FEp127, 0x1.FFp127, 0x7F7F, 0x7F80},
                        {DType::kF8E5M2, 57344, 61440, 0x7B, 0x7C},
                        {DType::kF8E4M3, 448, 464, 0x7E, 0x7F}};
  for (const Case& c : cases) {
    const auto narrow = [&c](double value) {
      return ConvertBits(DType::kF64, As<uint64_t>(value), c.dtype);
    };
    EXPECT_EQ(narrow(c.largest), c.largest_bits);
    EXPECT_EQ(narrow(std::nextafter(c.middle, 0)), c.largest_bits);
    // The largest of E4M3 is even, those of the others are odd.
    EXPECT_EQ(narrow(c.middle), c.dtype == DType::kF8E4M3 ? c.largest_bits : c.above);
    EXPECT_EQ(narrow(std::nextafter(c.middle, INFINITY)), c.above);
    EXPECT_EQ(narrow(1e300), c.above);
    EXPECT_EQ(narrow(INFINITY), c.above);
    EXPECT_EQ(narrow(std::numeric_limits<double>::denorm_min()), 0u);
  }
}

TEST(ConvertTest, WideningKeepsNansBitForBit) {
  EXPECT_EQ(ConvertBits(DType::kBF16, 0xFF81, DType::kF32), 0xFF810000u);
  EXPECT_EQ(ConvertBits(DType::kF16, 0x7D01, DType::kF32), 0x7FA02000u);
  EXPECT_EQ(ConvertBits(DType::kF32, 0xFFA00001, DType::kF64), 0xFFF4000020000000u);
  EXPECT_EQ(ConvertBits(DType::kF8E5M2, 0xFD, DType::kF16), 0xFD00u);
  EXPECT_EQ(ConvertBits(DType::kF8E4M3, 0xFF, DType::kF32), 0xFFC00000u);
}

TEST(ConvertTest, NarrowingMakesNansQuiet) {
  EXPECT_EQ(ConvertBits(DType::kF64, 0xFFF4000020000001u, DType::kF32), 0xFFE00001u);
  EXPECT_EQ(ConvertBits(DType::kF64, 0xFFF0000000000001u, DType::kF16), 0xFE00u);
  EXPECT_EQ(ConvertBits(DType::kF64, 0xFFF0000000000001u, DType::kBF16), 0x7FC0u);
  EXPECT_EQ(ConvertBits(DType::kF16, 0xFC01, DType::kBF16), 0x7FC0u);
  EXPECT_EQ(ConvertBits(DType::kF16, 0xFC01, DType::kF8E4M3), 0xFFu);
}

// The processor knows the rule for its own types.
TEST(ConvertTest, AgreesWithTheProcessor) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t bits = random();
    const auto f64 = As<double>(bits);
    const auto f32 = As<float>(static_cast<uint32_t>(bits));
    if (std::isnan(f64) || std::isnan(f32)) continue;
    ASSERT_EQ(ConvertBits(DType::kF64, bits, DType::kF32), As<uint32_t>(static_cast<float>(f64)));
    ASSERT_EQ(ConvertBits(DType::kF32, bits, DType::kF64), As<uint64_t>(static_cast<double>(f32)));
    // Near 1, where all of the mantissa counts.
    const double near = 1 + std::ldexp(static_cast<double>(bits >> 11), -53);
    ASSERT_EQ(ConvertBits(DType::kF64, As<uint64_t>(near), DType::kF32),
              As<uint32_t>(static_cast<float>(near)));
  }
}

// The codec converts FP32 to 16 bits, with vectors. From F64 it is our own code.
TEST(ConvertTest, AgreesWithTheRoundedCopiesOfTheStore) {
  std::mt19937 random(2);
  for (int i = 0; i < 200'000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const uint64_t f64 = ConvertBits(DType::kF32, bits, DType::kF64);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      ASSERT_EQ(ConvertBits(DType::kF64, f64, dtype), ConvertBits(DType::kF32, bits, dtype))
          << DTypeName(dtype) << " " << bits;
    }
  }
}

TEST(ConvertTest, ConvertsManyElementsAndNone) {
  std::vector<std::byte> f32(size_t{4} * 1001);
  std::vector<std::byte> bf16(size_t{2} * 1001);
  for (size_t i = 0; i < 1001; ++i) {
    const auto value = static_cast<float>(i % 200);
    std::memcpy(&f32[4 * i], &value, 4);
  }
  Convert(DType::kF32, f32, DType::kBF16, bf16);
  std::vector<std::byte> back(f32.size());
  Convert(DType::kBF16, bf16, DType::kF32, back);
  EXPECT_EQ(back, f32);
  Convert(DType::kF32, f32, DType::kF32, back);
  EXPECT_EQ(back, f32);
  Convert(DType::kF32, {}, DType::kF16, {});
  Convert(DType::kI8, {}, DType::kI8, {});
}

TEST(ConvertTest, OnlyFloatsConvert) {
  for (const DType from : kFloats) {
    for (const DType to : kFloats) EXPECT_TRUE(CanConvert(from, to));
    for (const DType other : {DType::kBool, DType::kI32, DType::kF8E8M0, DType::kF4, DType::kC64}) {
      EXPECT_FALSE(CanConvert(from, other));
      EXPECT_FALSE(CanConvert(other, from));
    }
  }
}

}  // namespace

}  // namespace varve::internal
