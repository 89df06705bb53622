// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/number.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

namespace varve::formats {
namespace {

double DecodeBF16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// A power of two without sign or mantissa; the last pattern is NaN.
double DecodeE8M0(uint32_t bits) {
  if (bits == 0xff) return std::numeric_limits<double>::quiet_NaN();
  return std::ldexp(1.0, static_cast<int>(bits) - 127);
}

// Elements narrower than a byte, as a stream of bits that begins at the lowest.
uint32_t LoadBits(std::span<const std::byte> bytes, size_t first_bit, int count) {
  uint32_t word = std::to_integer<uint32_t>(bytes[first_bit / 8]);
  if (first_bit / 8 + 1 < bytes.size()) {
    word |= std::to_integer<uint32_t>(bytes[first_bit / 8 + 1]) << 8;
  }
  return (word >> (first_bit % 8)) & ((1u << count) - 1);
}

// Decodes elements of type T, each made a number of type U by `convert`.
template <typename T, typename Convert>
void DecodeAll(std::span<const std::byte> bytes, Convert convert, std::vector<Number>* numbers) {
  for (size_t offset = 0; offset + sizeof(T) <= bytes.size(); offset += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
    numbers->push_back(convert(value));
  }
}

Number Signed(int64_t value) { return value; }
Number Unsigned(uint64_t value) { return value; }
Number Real(double value) { return value; }

void DecodeSubByte(DType dtype, std::span<const std::byte> bytes, std::vector<Number>* numbers) {
  const int bits = DTypeBits(dtype);
  const size_t count = bytes.size() * 8 / static_cast<size_t>(bits);
  for (size_t i = 0; i < count; ++i) {
    numbers->push_back(
        DecodeFloat16OrLess(dtype, LoadBits(bytes, i * static_cast<size_t>(bits), bits)));
  }
}

}  // namespace

double DecodeSmallFloat(uint32_t bits, int exponent_bits, int mantissa_bits, SmallFloatNan nan) {
  const uint32_t max_exponent = (1u << exponent_bits) - 1;
  const uint32_t max_mantissa = (1u << mantissa_bits) - 1;
  const uint32_t exponent = (bits >> mantissa_bits) & max_exponent;
  const uint32_t mantissa = bits & max_mantissa;
  const double sign = (bits >> (exponent_bits + mantissa_bits)) & 1 ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == max_exponent && nan != SmallFloatNan::kFinite) {
    const bool is_ieee = nan == SmallFloatNan::kIeee;
    if (is_ieee && mantissa == 0) return sign * std::numeric_limits<double>::infinity();
    if (is_ieee || mantissa == max_mantissa) return std::numeric_limits<double>::quiet_NaN();
  }
  // Below the smallest exponent the leading one is missing (denormal numbers).
  const uint32_t significand = exponent == 0 ? mantissa : mantissa + max_mantissa + 1;
  const int power = (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - mantissa_bits;
  return sign * std::ldexp(static_cast<double>(significand), power);
}

double DecodeFloat16OrLess(DType dtype, uint32_t bits) {
  switch (dtype) {
    case DType::kBF16:
      return DecodeBF16(bits);
    case DType::kF16:
      return DecodeSmallFloat(bits, 5, 10, SmallFloatNan::kIeee);
    case DType::kF8E4M3:
      return DecodeSmallFloat(bits, 4, 3, SmallFloatNan::kAllOnes);
    case DType::kF8E5M2:
      return DecodeSmallFloat(bits, 5, 2, SmallFloatNan::kIeee);
    case DType::kF8E8M0:
      return DecodeE8M0(bits);
    case DType::kF4:
      return DecodeSmallFloat(bits, 2, 1, SmallFloatNan::kFinite);
    case DType::kF6E2M3:
      return DecodeSmallFloat(bits, 2, 3, SmallFloatNan::kFinite);
    case DType::kF6E3M2:
      return DecodeSmallFloat(bits, 3, 2, SmallFloatNan::kFinite);
    default:
      assert(false && "not a float of at most 16 bits");
      return 0;
  }
}

std::vector<Number> DecodeNumbers(DType dtype, std::span<const std::byte> bytes) {
  std::vector<Number> numbers;
  const auto small = [dtype](uint32_t bits) { return Real(DecodeFloat16OrLess(dtype, bits)); };
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      DecodeAll<uint8_t>(bytes, Unsigned, &numbers);
      break;
    case DType::kI8:
      DecodeAll<int8_t>(bytes, Signed, &numbers);
      break;
    case DType::kU16:
      DecodeAll<uint16_t>(bytes, Unsigned, &numbers);
      break;
    case DType::kI16:
      DecodeAll<int16_t>(bytes, Signed, &numbers);
      break;
    case DType::kU32:
      DecodeAll<uint32_t>(bytes, Unsigned, &numbers);
      break;
    case DType::kI32:
      DecodeAll<int32_t>(bytes, Signed, &numbers);
      break;
    case DType::kU64:
      DecodeAll<uint64_t>(bytes, Unsigned, &numbers);
      break;
    case DType::kI64:
      DecodeAll<int64_t>(bytes, Signed, &numbers);
      break;
    case DType::kBF16:
    case DType::kF16:
      DecodeAll<uint16_t>(bytes, small, &numbers);
      break;
    case DType::kC64:  // two floats
    case DType::kF32:
      DecodeAll<float>(bytes, Real, &numbers);
      break;
    case DType::kF64:
      DecodeAll<double>(bytes, Real, &numbers);
      break;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0:
      DecodeAll<uint8_t>(bytes, small, &numbers);
      break;
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
      DecodeSubByte(dtype, bytes, &numbers);
      break;
  }
  return numbers;
}

}  // namespace varve::formats
