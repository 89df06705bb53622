// SPDX-License-Identifier: Apache-2.0
#include "base/number.h"

#include <bit>
#include <cassert>
#include <cstring>
#include <limits>

namespace varve::internal {

namespace {

double DecodeBF16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// Returns 2 to a power within the range of normal doubles. It is much faster than ldexp.
double PowerOfTwo(int power) {
  return std::bit_cast<double>(static_cast<uint64_t>(power + 1023) << 52);
}

// A power of two without sign or mantissa. The last pattern is NaN.
double DecodeE8M0(uint32_t bits) {
  if (bits == 0xff) return std::numeric_limits<double>::quiet_NaN();
  return PowerOfTwo(static_cast<int>(bits) - 127);
}

// Reads elements narrower than a byte from a stream of bits that starts at the lowest bit.
uint32_t LoadBits(std::span<const std::byte> bytes, size_t first_bit, int count) {
  uint32_t word = std::to_integer<uint32_t>(bytes[first_bit / 8]);
  if (first_bit / 8 + 1 < bytes.size()) {
    word |= std::to_integer<uint32_t>(bytes[first_bit / 8 + 1]) << 8;
  }
  return (word >> (first_bit % 8)) & ((1u << count) - 1);
}

// Decodes elements of type T. `convert` turns each into a number of type U.
template <typename T, typename U, typename Convert>
Numbers DecodeAll(std::span<const std::byte> bytes, Convert convert) {
  std::vector<U> numbers(bytes.size() / sizeof(T));
  for (size_t i = 0; i < numbers.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    numbers[i] = static_cast<U>(convert(value));
  }
  return numbers;
}

template <typename T>
Numbers DecodeSigned(std::span<const std::byte> bytes) {
  return DecodeAll<T, int64_t>(bytes, [](T value) { return int64_t{value}; });
}

template <typename T>
Numbers DecodeUnsigned(std::span<const std::byte> bytes) {
  return DecodeAll<T, uint64_t>(bytes, [](T value) { return value; });
}

template <typename T>
Numbers DecodeReal(std::span<const std::byte> bytes) {
  return DecodeAll<T, double>(bytes, [](T value) { return value; });
}

template <typename T>
Numbers DecodeSmall(DType dtype, std::span<const std::byte> bytes) {
  return DecodeAll<T, double>(bytes, [dtype](T bits) { return DecodeFloat16OrLess(dtype, bits); });
}

Numbers DecodeSubByte(DType dtype, std::span<const std::byte> bytes) {
  const int bits = DTypeBits(dtype);
  std::vector<double> numbers(bytes.size() * 8 / static_cast<size_t>(bits));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = DecodeFloat16OrLess(dtype, LoadBits(bytes, i * static_cast<size_t>(bits), bits));
  }
  return numbers;
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
  // Below the smallest exponent there is no leading one (denormal numbers).
  const uint32_t significand = exponent == 0 ? mantissa : mantissa + max_mantissa + 1;
  const int power = (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - mantissa_bits;
  return sign * static_cast<double>(significand) * PowerOfTwo(power);
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

Numbers DecodeNumbers(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return DecodeUnsigned<uint8_t>(bytes);
    case DType::kI8:
      return DecodeSigned<int8_t>(bytes);
    case DType::kU16:
      return DecodeUnsigned<uint16_t>(bytes);
    case DType::kI16:
      return DecodeSigned<int16_t>(bytes);
    case DType::kU32:
      return DecodeUnsigned<uint32_t>(bytes);
    case DType::kI32:
      return DecodeSigned<int32_t>(bytes);
    case DType::kU64:
      return DecodeUnsigned<uint64_t>(bytes);
    case DType::kI64:
      return DecodeSigned<int64_t>(bytes);
    case DType::kBF16:
    case DType::kF16:
      return DecodeSmall<uint16_t>(dtype, bytes);
    case DType::kC64:  // two floats
    case DType::kF32:
      return DecodeReal<float>(bytes);
    case DType::kF64:
      return DecodeReal<double>(bytes);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0:
      return DecodeSmall<uint8_t>(dtype, bytes);
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
      return DecodeSubByte(dtype, bytes);
  }
  return {};
}

}  // namespace varve::internal
