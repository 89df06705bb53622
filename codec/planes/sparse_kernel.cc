// SPDX-License-Identifier: Apache-2.0
#include "codec/planes/sparse_kernel.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/planes/compress_avx2.h"

namespace varve::internal {

namespace {

// The vector kernels do whole vectors and say how many elements and values that were.
struct Progress {
  size_t elements = 0;
  size_t values = 0;
};

Progress PackNonZerosRest(Progress at, const uint8_t* data, size_t n, uint8_t* bitmap,
                          uint8_t* values) {
  for (; at.elements < n; at.elements += 8) {
    const size_t count = std::min<size_t>(8, n - at.elements);
    unsigned bits = 0;
    for (size_t k = 0; k < count; ++k) {
      const uint8_t value = data[at.elements + k];
      values[at.values] = value;  // overwritten by the next one when it is zero
      at.values += value != 0;
      bits |= static_cast<unsigned>(value != 0) << k;
    }
    bitmap[at.elements / 8] = static_cast<uint8_t>(bits);
  }
  return at;
}

void UnpackNonZerosRest(Progress at, const uint8_t* bitmap, const uint8_t* values, size_t n,
                        uint8_t* data) {
  for (; at.elements < n; ++at.elements) {
    const bool set = (bitmap[at.elements / 8] >> (at.elements % 8)) & 1;
    data[at.elements] = set ? values[at.values] : uint8_t{0};
    at.values += set;
  }
}

Progress PackNibblesRest(Progress at, const uint8_t* data, size_t n, uint8_t* pairs,
                         uint8_t* escapes) {
  for (; at.elements < n; at.elements += 2) {
    unsigned pair = 0;
    for (size_t k = 0; k < 2 && at.elements + k < n; ++k) {
      const uint8_t value = data[at.elements + k];
      escapes[at.values] = value;  // overwritten by the next one when it is no escape
      at.values += value >= kNibbleEscape;
      pair |= static_cast<unsigned>(std::min(value, kNibbleEscape)) << (4 * k);
    }
    pairs[at.elements / 2] = static_cast<uint8_t>(pair);
  }
  return at;
}

void UnpackNibblesRest(Progress at, const uint8_t* pairs, const uint8_t* escapes, size_t n,
                       uint8_t* data) {
  for (; at.elements < n; ++at.elements) {
    const unsigned half = (pairs[at.elements / 2] >> (4 * (at.elements % 2))) & 15u;
    data[at.elements] = half == kNibbleEscape ? escapes[at.values++] : static_cast<uint8_t>(half);
  }
}

#if VARVE_X86

VARVE_AVX512 Progress PackNonZerosAvx512(const uint8_t* data, size_t n, uint8_t* bitmap,
                                         uint8_t* values) {
  Progress at;
  for (; at.elements + 64 <= n; at.elements += 64) {
    const __m512i bytes = _mm512_loadu_si512(data + at.elements);
    const uint64_t mask = _mm512_test_epi8_mask(bytes, bytes);
    std::memcpy(bitmap + at.elements / 8, &mask, 8);
    _mm512_storeu_si512(values + at.values, _mm512_maskz_compress_epi8(mask, bytes));
    at.values += static_cast<size_t>(_mm_popcnt_u64(mask));
  }
  return at;
}

VARVE_AVX512 Progress UnpackNonZerosAvx512(const uint8_t* bitmap, const uint8_t* values, size_t n,
                                           uint8_t* data) {
  Progress at;
  for (; at.elements + 64 <= n; at.elements += 64) {
    uint64_t mask;
    std::memcpy(&mask, bitmap + at.elements / 8, 8);
    const __m512i packed = _mm512_loadu_si512(values + at.values);
    _mm512_storeu_si512(data + at.elements, _mm512_maskz_expand_epi8(mask, packed));
    at.values += static_cast<size_t>(_mm_popcnt_u64(mask));
  }
  return at;
}

VARVE_AVX512 Progress PackNibblesAvx512(const uint8_t* data, size_t n, uint8_t* pairs,
                                        uint8_t* escapes) {
  const __m512i limit = _mm512_set1_epi8(kNibbleEscape);
  Progress at;
  for (; at.elements + 64 <= n; at.elements += 64) {
    const __m512i bytes = _mm512_loadu_si512(data + at.elements);
    const __mmask64 mask = _mm512_cmpge_epu8_mask(bytes, limit);
    const __m512i halves = _mm512_min_epu8(bytes, limit);
    const __m512i joined = _mm512_or_si512(halves, _mm512_srli_epi16(halves, 4));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + at.elements / 2),
                        _mm512_cvtepi16_epi8(joined));
    if (mask == 0) continue;
    _mm512_storeu_si512(escapes + at.values, _mm512_maskz_compress_epi8(mask, bytes));
    at.values += static_cast<size_t>(_mm_popcnt_u64(mask));
  }
  return at;
}

VARVE_AVX512 Progress UnpackNibblesAvx512(const uint8_t* pairs, const uint8_t* escapes, size_t n,
                                          uint8_t* data) {
  const __m512i limit = _mm512_set1_epi8(kNibbleEscape);
  Progress at;
  for (; at.elements + 64 <= n; at.elements += 64) {
    const __m256i packed =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs + at.elements / 2));
    const __m512i wide = _mm512_cvtepu8_epi16(packed);
    const __m512i halves =
        _mm512_and_si512(_mm512_or_si512(wide, _mm512_slli_epi16(wide, 4)), limit);
    const __mmask64 mask = _mm512_cmpeq_epi8_mask(halves, limit);
    const __m512i whole = _mm512_loadu_si512(escapes + at.values);
    _mm512_storeu_si512(data + at.elements, _mm512_mask_expand_epi8(halves, mask, whole));
    at.values += static_cast<size_t>(_mm_popcnt_u64(mask));
  }
  return at;
}

VARVE_AVX2 Progress PackNonZerosAvx2(const uint8_t* data, size_t n, uint8_t* bitmap,
                                     uint8_t* values) {
  Progress at;
  for (; at.elements + 32 <= n; at.elements += 32) {
    const __m128i first = Load128(data + at.elements);
    const __m128i second = Load128(data + at.elements + 16);
    const __m256i zero = _mm256_cmpeq_epi8(_mm256_set_m128i(second, first), _mm256_setzero_si256());
    const uint32_t mask = ~static_cast<uint32_t>(_mm256_movemask_epi8(zero));
    std::memcpy(bitmap + at.elements / 8, &mask, 4);
    Compress16(first, mask, values + at.values);
    Compress16(second, mask >> 16, values + at.values + CountBits(mask & 0xFFFF));
    at.values += CountBits(mask);
  }
  return at;
}

VARVE_AVX2 Progress UnpackNonZerosAvx2(const uint8_t* bitmap, const uint8_t* values, size_t n,
                                       uint8_t* data) {
  const __m256i byte_of_bit =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const uint8_t* from = values;
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    int32_t mask;
    std::memcpy(&mask, bitmap + i / 8, sizeof(mask));
    const __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32(mask), byte_of_bit);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(data + i), Expand32(set, &from));
  }
  return {.elements = i, .values = static_cast<size_t>(from - values)};
}

VARVE_AVX2 Progress PackNibblesAvx2(const uint8_t* data, size_t n, uint8_t* pairs,
                                    uint8_t* escapes) {
  const __m256i limit = _mm256_set1_epi8(kNibbleEscape);
  const __m256i low = _mm256_set1_epi16(0xFF);
  Progress at;
  for (; at.elements + 32 <= n; at.elements += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + at.elements));
    const __m256i halves = _mm256_min_epu8(bytes, limit);
    const __m256i joined =
        _mm256_and_si256(_mm256_or_si256(halves, _mm256_srli_epi16(halves, 4)), low);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(joined, joined), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(pairs + at.elements / 2),
                     _mm256_castsi256_si128(packed));
    auto mask = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(halves, limit)));
    for (; mask != 0; mask &= mask - 1) {
      escapes[at.values++] = data[at.elements + static_cast<size_t>(std::countr_zero(mask))];
    }
  }
  return at;
}

VARVE_AVX2 Progress UnpackNibblesAvx2(const uint8_t* pairs, const uint8_t* escapes, size_t n,
                                      uint8_t* data) {
  const __m256i limit = _mm256_set1_epi8(kNibbleEscape);
  Progress at;
  for (; at.elements + 32 <= n; at.elements += 32) {
    const __m256i wide = _mm256_cvtepu8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs + at.elements / 2)));
    const __m256i halves =
        _mm256_and_si256(_mm256_or_si256(wide, _mm256_slli_epi16(wide, 4)), limit);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(data + at.elements), halves);
    auto mask = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(halves, limit)));
    for (; mask != 0; mask &= mask - 1) {
      data[at.elements + static_cast<size_t>(std::countr_zero(mask))] = escapes[at.values++];
    }
  }
  return at;
}

#endif  // VARVE_X86

}  // namespace

size_t PackNonZeros([[maybe_unused]] CpuLevel level, const uint8_t* data, size_t n, uint8_t* bitmap,
                    uint8_t* values) {
  Progress at;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) at = PackNonZerosAvx512(data, n, bitmap, values);
  if (level == CpuLevel::kAvx2) at = PackNonZerosAvx2(data, n, bitmap, values);
#endif
  return PackNonZerosRest(at, data, n, bitmap, values).values;
}

size_t CountNonZeros(CpuLevel level, const uint8_t* bitmap, size_t n) {
  size_t sum = 0;
  RunAt(
      level,
      [](In from, size_t words, size_t* to) VARVE_INLINE {
        size_t found = 0;
        for (size_t i = 0; i < words; ++i) {
          uint64_t word;
          std::memcpy(&word, from + 8 * i, 8);
          found += static_cast<size_t>(std::popcount(word));
        }
        *to = found;
      },
      bitmap, n / 64, &sum);
  for (size_t i = n / 64 * 8; i < (n + 7) / 8; ++i) {
    sum += static_cast<size_t>(std::popcount(bitmap[i]));
  }
  return sum;
}

void UnpackNonZeros([[maybe_unused]] CpuLevel level, const uint8_t* bitmap, const uint8_t* values,
                    size_t n, uint8_t* data) {
  Progress at;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) at = UnpackNonZerosAvx512(bitmap, values, n, data);
  if (level == CpuLevel::kAvx2) at = UnpackNonZerosAvx2(bitmap, values, n, data);
#endif
  UnpackNonZerosRest(at, bitmap, values, n, data);
}

size_t PackNibbles([[maybe_unused]] CpuLevel level, const uint8_t* data, size_t n, uint8_t* pairs,
                   uint8_t* escapes) {
  Progress at;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) at = PackNibblesAvx512(data, n, pairs, escapes);
  if (level == CpuLevel::kAvx2) at = PackNibblesAvx2(data, n, pairs, escapes);
#endif
  return PackNibblesRest(at, data, n, pairs, escapes).values;
}

size_t CountEscapes(CpuLevel level, const uint8_t* pairs, size_t n) {
  const size_t bytes = n / 2;
  uint32_t sum = 0;
  RunAt(
      level,
      [](In from, size_t count, uint32_t* to) VARVE_INLINE {
        uint32_t found = 0;
        for (size_t i = 0; i < count; ++i) {
          found +=
              static_cast<uint32_t>((from[i] & 15) == 15) + static_cast<uint32_t>(from[i] >= 0xF0);
        }
        *to = found;
      },
      pairs, bytes, &sum);
  return sum + (n % 2 != 0 && (pairs[bytes] & 15) == 15);
}

void UnpackNibbles([[maybe_unused]] CpuLevel level, const uint8_t* pairs, const uint8_t* escapes,
                   size_t n, uint8_t* data) {
  Progress at;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) at = UnpackNibblesAvx512(pairs, escapes, n, data);
  if (level == CpuLevel::kAvx2) at = UnpackNibblesAvx2(pairs, escapes, n, data);
#endif
  UnpackNibblesRest(at, pairs, escapes, n, data);
}

void SplitHalves(CpuLevel level, const uint8_t* data, size_t n, uint8_t* low, uint8_t* high) {
  RunAt(
      level,
      [](In from, size_t pairs, Out to_low, Out to_high) VARVE_INLINE {
        for (size_t i = 0; i < pairs; ++i) {
          uint16_t pair;
          std::memcpy(&pair, from + 2 * i, 2);
          to_low[i] = static_cast<uint8_t>((pair & 0x0F) | ((pair >> 4) & 0xF0));
          to_high[i] = static_cast<uint8_t>(((pair >> 4) & 0x0F) | ((pair >> 8) & 0xF0));
        }
      },
      data, n / 2, low, high);
  if (n % 2 == 0) return;
  low[n / 2] = data[n - 1] & 0x0F;
  high[n / 2] = data[n - 1] >> 4;
}

void JoinHalves(CpuLevel level, const uint8_t* low, const uint8_t* high, size_t n, uint8_t* data) {
  RunAt(
      level,
      [](In from_low, In from_high, size_t pairs, Out to) VARVE_INLINE {
        for (size_t i = 0; i < pairs; ++i) {
          const unsigned l = from_low[i];
          const unsigned h = from_high[i];
          const auto pair = static_cast<uint16_t>((l & 0x0F) | ((l & 0xF0) << 4) |
                                                  ((h & 0x0F) << 4) | ((h & 0xF0) << 8));
          std::memcpy(to + 2 * i, &pair, 2);
        }
      },
      low, high, n / 2, data);
  if (n % 2 == 0) return;
  data[n - 1] = static_cast<uint8_t>((low[n / 2] & 0x0F) | (high[n / 2] << 4));
}

}  // namespace varve::internal
