// SPDX-License-Identifier: Apache-2.0
//
// Two operations that AVX-512 has as instructions and AVX2 lacks: moving the bytes that a mask
// names together, and moving them apart again. Shuffles are faster here than pext and pdep, because
// masks and words for these must leave the vector registers. They are much faster where pext and
// pdep are microcoded. This file also has the loads and stores of vectors. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

#if VARVE_X86
#include <immintrin.h>

namespace varve::internal {

// The entry for a mask of 8 bytes.
struct alignas(32) CompressEntry {
  uint8_t low[8];     // the indices of its bytes, in order
  uint8_t high[8];    // the same for a mask of bytes 8 to 15
  uint8_t close[16];  // closes the gap between the bytes of `low` and those of another `high`
};
struct CompressTable {
  CompressEntry of[256];

  constexpr CompressTable() : of{} {
    for (int mask = 0; mask < 256; ++mask) Fill(mask, &of[mask]);
  }

 private:
  static constexpr void Fill(int mask, CompressEntry* entry) {
    uint8_t count = 0;
    for (uint8_t k = 0; k < 8; ++k) {
      if (((mask >> k) & 1) == 0) continue;
      entry->low[count] = k;
      entry->high[count++] = static_cast<uint8_t>(8 + k);
    }
    for (uint8_t k = 0; k < 16; ++k) {
      entry->close[k] = k < count ? k : static_cast<uint8_t>((8 + k - count) & 15);
    }
  }
};
inline constexpr CompressTable kCompressTable;

VARVE_AVX2 VARVE_INLINE inline __m128i Load128(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
VARVE_AVX2 VARVE_INLINE inline __m256i Load256(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
VARVE_AVX2 VARVE_INLINE inline void Store256(uint8_t* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
VARVE_AVX2 VARVE_INLINE inline __m128i Load64And64(const uint8_t* low, const uint8_t* high) {
  const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(low));
  return _mm_castpd_si128(
      _mm_loadh_pd(_mm_castsi128_pd(first), reinterpret_cast<const double*>(high)));
}

// Writes the bytes whose bit is set to `to`. It also overwrites what follows them, up to 16 bytes
// in all.
VARVE_AVX2 VARVE_INLINE inline void Compress16(__m128i bytes, uint32_t mask, uint8_t* to) {
  const CompressEntry& first = kCompressTable.of[mask & 0xFF];
  const CompressEntry& second = kCompressTable.of[(mask >> 8) & 0xFF];
  const __m128i halves = _mm_shuffle_epi8(bytes, Load64And64(first.low, second.high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(halves, Load128(first.close)));
}

VARVE_AVX2 VARVE_INLINE inline size_t CountBits(uint32_t mask) {
  return static_cast<size_t>(_mm_popcnt_u32(mask));
}

// Puts bytes from the front of *from, in order, where `set` has a byte that is all ones, and moves
// *from past them. All other bytes of `set` must be zero, and stay zero. It reads 32 bytes from
// *from on.
VARVE_AVX2 VARVE_INLINE inline __m256i Expand32(__m256i set, const uint8_t** from) {
  // Each byte counts the set bytes up to itself within its half. The count is negative, because a
  // byte of all ones is -1.
  __m256i sum = _mm256_add_epi8(set, _mm256_slli_si256(set, 1));
  sum = _mm256_add_epi8(sum, _mm256_slli_si256(sum, 2));
  sum = _mm256_add_epi8(sum, _mm256_slli_si256(sum, 4));
  sum = _mm256_add_epi8(sum, _mm256_slli_si256(sum, 8));
  // The complement of -n is n - 1, which is the index. The complement of 0 gives a zero in a
  // shuffle.
  const __m256i index = _mm256_xor_si256(_mm256_and_si256(sum, set), _mm256_set1_epi8(-1));
  const auto mask = static_cast<uint32_t>(_mm256_movemask_epi8(set));
  const __m128i low = Load128(*from);
  const __m128i high = Load128(*from + CountBits(mask & 0xFFFF));
  *from += CountBits(mask);
  return _mm256_shuffle_epi8(_mm256_set_m128i(high, low), index);
}

}  // namespace varve::internal

#endif  // VARVE_X86
