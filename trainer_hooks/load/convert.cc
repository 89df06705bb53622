// SPDX-License-Identifier: Apache-2.0
//
// Every type goes through F64, which holds all values of the others, so there is one rounding. All
// of it is arithmetic on bits, which no mode of the processor can change.
#include "trainer_hooks/load/convert.h"

#include <cassert>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "codec/predict/rounded_copy.h"

namespace varve::internal {

namespace {

constexpr int kF64Mantissa = 52;
constexpr int kF64Bias = 1023;
constexpr uint64_t kF64Infinity = uint64_t{0x7FF} << kF64Mantissa;
constexpr uint64_t kF64Quiet = uint64_t{1} << (kF64Mantissa - 1);

template <typename BitsType, int kExponentBits, bool kHasInfinity = true, bool kHasOneNan = false>
struct Format {
  using Bits = BitsType;
  static constexpr int kWidth = 8 * sizeof(Bits);
  static constexpr int kMantissa = kWidth - 1 - kExponentBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr bool kInfinite = kHasInfinity;
  static constexpr bool kOneNan = kHasOneNan;
  static constexpr uint64_t kMagnitudes = (uint64_t{1} << (kWidth - 1)) - 1;
  // All exponent bits set.
  static constexpr uint64_t kTop = kMagnitudes >> kMantissa << kMantissa;
  // The smallest magnitude that is infinity or NaN.
  static constexpr uint64_t kNoNumber = kHasInfinity ? kTop : kMagnitudes;
};
using F64 = Format<uint64_t, 11>;
using F32 = Format<uint32_t, 8>;
using BF16 = Format<uint16_t, 8, true, true>;
using F16 = Format<uint16_t, 5>;
using E4M3 = Format<uint8_t, 4, false>;
using E5M2 = Format<uint8_t, 5>;

// Returns the F64 bits of a value.
template <typename From>
uint64_t Widen(uint64_t bits) {
  if (std::is_same_v<From, F64>) return bits;
  constexpr int kShift = kF64Mantissa - From::kMantissa;
  const uint64_t sign = bits >> (From::kWidth - 1) << 63;
  uint64_t magnitude = bits & From::kMagnitudes;
  if (magnitude >= From::kNoNumber) {
    const uint64_t payload = From::kInfinite ? (magnitude - From::kTop) << kShift : kF64Quiet;
    return sign | kF64Infinity | payload;
  }
  if (magnitude == 0) return sign;
  // Moves a subnormal up to where a normal has its leading one.
  uint64_t exponent = kF64Bias - From::kBias;
  if (magnitude >> From::kMantissa == 0) {
    ++exponent;
    for (; magnitude >> From::kMantissa == 0; --exponent) magnitude <<= 1;
    magnitude -= uint64_t{1} << From::kMantissa;
  }
  return sign | ((magnitude << kShift) + (exponent << kF64Mantissa));
}

// Returns the NaN with the high bits of the payload of an F64 NaN.
template <typename To>
uint64_t NarrowNan(uint64_t sign, uint64_t magnitude, bool make_quiet) {
  const uint64_t quiet = make_quiet ? uint64_t{1} << (To::kMantissa - 1) : 0;
  if (To::kOneNan && make_quiet) return To::kTop | quiet;
  if (!To::kInfinite) return sign | To::kNoNumber;
  const uint64_t payload = (magnitude - kF64Infinity) >> (kF64Mantissa - To::kMantissa);
  return sign | To::kTop | payload | quiet;
}

// Returns the value nearest to an F64 value.
template <typename To>
uint64_t Narrow(uint64_t bits, bool make_quiet) {
  if constexpr (std::is_same_v<To, F64>) return bits;
  const uint64_t sign = bits >> 63 << (To::kWidth - 1);
  const uint64_t magnitude = bits & F64::kMagnitudes;
  if (magnitude > kF64Infinity) return NarrowNan<To>(sign, magnitude, make_quiet);
  // The exponent as To would write it if its field had room for it. 0 is the exponent of
  // subnormals.
  int exponent = static_cast<int>(magnitude >> kF64Mantissa) - kF64Bias + To::kBias;
  int shift = kF64Mantissa - To::kMantissa;
  if (exponent < 1) {
    shift += 1 - exponent;
    exponent = 1;
  }
  if (shift > kF64Mantissa + 1)
    return sign;  // less than half of the least, as F64's subnormals are
  const uint64_t one = uint64_t{1} << kF64Mantissa;
  const uint64_t mantissa = (magnitude & (one - 1)) | one;
  const uint64_t half_less_one = (uint64_t{1} << (shift - 1)) - 1;
  const uint64_t rounded = (mantissa + half_less_one + ((mantissa >> shift) & 1)) >> shift;
  // The leading one of a normal value, and a carry, raise the exponent by one.
  const uint64_t result = (static_cast<uint64_t>(exponent - 1) << To::kMantissa) + rounded;
  return sign | (result < To::kNoNumber ? result : To::kNoNumber);
}

template <typename From, typename To>
void ConvertAll(const std::byte* source, size_t n, std::byte* target) {
  for (size_t i = 0; i < n; ++i) {
    typename From::Bits bits;
    std::memcpy(&bits, source + i * sizeof(bits), sizeof(bits));
    constexpr bool kNarrows = From::kWidth >= To::kWidth;
    const auto result = static_cast<typename To::Bits>(Narrow<To>(Widen<From>(bits), kNarrows));
    std::memcpy(target + i * sizeof(result), &result, sizeof(result));
  }
}

// Every load of a BF16 model into FP32 needs this conversion.
void WidenBf16(const std::byte* source, size_t n, std::byte* target) {
  for (size_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + 2 * i, 2);
    const uint32_t wide = uint32_t{bits} << 16;
    std::memcpy(target + 4 * i, &wide, 4);
  }
}

// Calls `use(Format)` with the format of a dtype. Returns false when it has none.
template <typename Use>
bool WithFormat(DType dtype, Use use) {
  switch (dtype) {
    case DType::kF64:
      return use(F64()), true;
    case DType::kF32:
      return use(F32()), true;
    case DType::kBF16:
      return use(BF16()), true;
    case DType::kF16:
      return use(F16()), true;
    case DType::kF8E4M3:
      return use(E4M3()), true;
    case DType::kF8E5M2:
      return use(E5M2()), true;
    default:
      return false;
  }
}

}  // namespace

bool CanConvert(DType from, DType to) {
  const auto ignore = [](auto) {};
  return WithFormat(from, ignore) && WithFormat(to, ignore);
}

void Convert(DType from, std::span<const std::byte> source, DType to, std::span<std::byte> target) {
  assert(from == to || CanConvert(from, to));
  assert(source.size() * static_cast<size_t>(DTypeBits(to)) ==
         target.size() * static_cast<size_t>(DTypeBits(from)));
  if (from == to) {
    if (!source.empty()) std::memcpy(target.data(), source.data(), source.size());
    return;
  }
  if (from == DType::kF32 && HasRoundedCopy(to)) return MakeRoundedCopy(to, source, target);
  const size_t n = source.size() * 8 / static_cast<size_t>(DTypeBits(from));
  if (from == DType::kBF16 && to == DType::kF32) return WidenBf16(source.data(), n, target.data());
  WithFormat(from, [&](auto source_format) {
    WithFormat(to, [&](auto target_format) {
      ConvertAll<decltype(source_format), decltype(target_format)>(source.data(), n, target.data());
    });
  });
}

}  // namespace varve::internal
