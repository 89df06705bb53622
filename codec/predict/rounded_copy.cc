// SPDX-License-Identifier: Apache-2.0
#include "codec/predict/rounded_copy.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "base/told_accesses.h"

#if VARVE_X86
#include <immintrin.h>
#endif

namespace varve::internal {

namespace {

// Elements per round of the comparison, small enough for the L1 cache.
constexpr size_t kRound = 4096;

VARVE_INLINE inline uint16_t ToBf16(uint32_t bits) {
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(nan ? 0x7FC0u : rounded);
}

// Rounds to nearest even, as VCVTPS2PH does.
uint16_t ToF16(uint32_t bits) {
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return static_cast<uint16_t>(sign | 0x7E00u | ((bits >> 13) & 0x1FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to infinity
  if (magnitude >= 0x38800000u) {  // normal: rebias the exponent, round at bit 13
    const uint32_t rebased = magnitude - 0x38000000u;
    return static_cast<uint16_t>(sign | ((rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13));
  }
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // below half of the least
  const uint32_t exponent = magnitude >> 23;
  const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  const uint32_t shift = 126 - exponent;  // 14 to 24
  const uint32_t half = 1u << (shift - 1);
  const uint32_t odd = (mantissa >> shift) & 1u;
  return static_cast<uint16_t>(sign | ((mantissa + half - 1 + odd) >> shift));
}

void RoundBf16(CpuLevel level, const std::byte* source, size_t n, std::byte* copy) {
  RunAt(
      level,
      [](In from, size_t count, Out to) VARVE_INLINE {
        for (size_t i = 0; i < count; ++i) {
          uint32_t bits;
          std::memcpy(&bits, from + 4 * i, 4);
          const uint16_t rounded = ToBf16(bits);
          std::memcpy(to + 2 * i, &rounded, 2);
        }
      },
      reinterpret_cast<const uint8_t*>(source), n, reinterpret_cast<uint8_t*>(copy));
}

#if VARVE_X86
VARVE_AVX2 size_t RoundF16Avx2(const std::byte* source, size_t n, std::byte* copy) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 values = _mm256_loadu_ps(reinterpret_cast<const float*>(source + 4 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(copy + 2 * i),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  return i;
}
#endif

void RoundF16([[maybe_unused]] CpuLevel level, const std::byte* source, size_t n, std::byte* copy) {
  size_t i = 0;
#if VARVE_X86
  // The instruction ignores flush-to-zero for its results. When denormals-are-zero is set, it takes
  // denormal sources as zero, but those round to zero anyway.
  if (level != CpuLevel::kPortable) i = RoundF16Avx2(source, n, copy);
#endif
  for (; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, source + 4 * i, 4);
    const uint16_t rounded = ToF16(bits);
    std::memcpy(copy + 2 * i, &rounded, 2);
  }
}

}  // namespace

bool HasRoundedCopy(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

bool IsRoundedCopy(DType dtype, std::span<const std::byte> source, std::span<const std::byte> copy,
                   CpuLevel level) {
  if (!HasRoundedCopy(dtype) || source.size() != 2 * copy.size() || copy.size() % 2 != 0) {
    return false;
  }
  TellRead(copy);
  std::byte rounded[2 * kRound];
  for (size_t at = 0; at < copy.size(); at += sizeof(rounded)) {
    const size_t bytes = std::min(sizeof(rounded), copy.size() - at);
    MakeRoundedCopy(dtype, source.subspan(2 * at, 2 * bytes), std::span(rounded, bytes), level);
    if (std::memcmp(rounded, copy.data() + at, bytes) != 0) return false;
  }
  return true;
}

void MakeRoundedCopy(DType dtype, std::span<const std::byte> source, std::span<std::byte> copy,
                     CpuLevel level) {
  assert(HasRoundedCopy(dtype) && source.size() == 2 * copy.size());
  TellRead(source);
  TellWritten(copy);
  const size_t n = copy.size() / 2;
  if (dtype == DType::kBF16) return RoundBf16(level, source.data(), n, copy.data());
  RoundF16(level, source.data(), n, copy.data());
}

}  // namespace varve::internal
