// SPDX-License-Identifier: Apache-2.0
//
// Tables of up to 64 bytes in vector registers, for the AVX2 kernels of the rANS coder. Functions
// are stateless.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "codec/planes/compress_avx2.h"

#if VARVE_X86
#include <immintrin.h>

namespace varve::internal {

// A table by index in both halves of vectors of 16 entries, kVectors of them.
template <size_t kVectors>
struct ByteTable {
  __m256i of[kVectors];
};
template <size_t kVectors>
VARVE_AVX2 VARVE_INLINE inline ByteTable<kVectors> LoadTable(const uint8_t* entries) {
  ByteTable<kVectors> table;
  for (size_t v = 0; v < kVectors; ++v) {
    table.of[v] = _mm256_broadcastsi128_si256(Load128(entries + 16 * v));
  }
  return table;
}
// Only the lowest bits of an index count, as many as the table needs. Bit 7 must be zero.
VARVE_AVX2 VARVE_INLINE inline __m256i Look(const ByteTable<1>& table, __m256i index) {
  return _mm256_shuffle_epi8(table.of[0], index);
}
VARVE_AVX2 VARVE_INLINE inline __m256i Look(const ByteTable<2>& table, __m256i index) {
  return _mm256_blendv_epi8(_mm256_shuffle_epi8(table.of[0], index),
                            _mm256_shuffle_epi8(table.of[1], index), _mm256_slli_epi16(index, 3));
}
VARVE_AVX2 VARVE_INLINE inline __m256i Look(const ByteTable<4>& table, __m256i index) {
  const __m256i bit4 = _mm256_slli_epi16(index, 3);
  const __m256i low = _mm256_blendv_epi8(_mm256_shuffle_epi8(table.of[0], index),
                                         _mm256_shuffle_epi8(table.of[1], index), bit4);
  const __m256i high = _mm256_blendv_epi8(_mm256_shuffle_epi8(table.of[2], index),
                                          _mm256_shuffle_epi8(table.of[3], index), bit4);
  return _mm256_blendv_epi8(low, high, _mm256_slli_epi16(index, 2));
}

}  // namespace varve::internal

#endif  // VARVE_X86
