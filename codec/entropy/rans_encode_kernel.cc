// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codec/entropy/rans_avx2.h"
#include "codec/entropy/rans_kernel.h"

#if VARVE_X86
#include <immintrin.h>
#endif

namespace varve::internal {

namespace {

// A state x gives its low byte to the stream when it is 256 * frequency or more. Then it becomes
// 256 * (x / frequency) + x % frequency + start.
void EncodePortable(const RansEncodeTable& table, size_t num_groups, const uint8_t* symbols,
                    size_t num_rounds, RansStates* states, RansEncodeEnds* ends) {
  RansStates lanes = *states;  // a store to a stream might change the others
  uint8_t* escapes = ends->escapes;
  const uint8_t escape_start = table.start[table.escape];
  const uint8_t* from = symbols + num_rounds * num_groups * kRansGroupLanes;
  for (size_t group = num_rounds * num_groups; group-- > 0;) {
    from -= kRansGroupLanes;
    const size_t g = group % num_groups;
    uint8_t* stream = ends->streams[g];
    for (size_t i = kRansGroupLanes; i-- > 0;) {
      uint8_t& low = lanes.low[g * kRansGroupLanes + i];
      uint8_t& high = lanes.high[g * kRansGroupLanes + i];
      const unsigned symbol = unsigned{from[i]} >> table.low_bits;
      const unsigned index = std::min((symbol - table.first) & 0xFF, unsigned{table.escape});
      const unsigned frequency = table.frequency[index];
      const unsigned x = low | unsigned{high} << 8;
      // This has no branch, because nobody could predict it.
      const unsigned give = high >= frequency ? 1u : 0u;
      stream[-1] = low;
      stream -= give;
      const unsigned kept = x >> (8 * give);
      const unsigned quotient = kept / frequency;
      high = static_cast<uint8_t>(quotient);
      low = static_cast<uint8_t>(kept - quotient * frequency + table.start[index]);
      if (table.start[index] == escape_start) {
        *--escapes = static_cast<uint8_t>(symbol << table.low_bits);
      }
    }
    ends->streams[g] = stream;
  }
  ends->escapes = escapes;
  *states = lanes;
}

#if VARVE_X86

// The indices that move the first bytes of a vector to its end, when read from kSlide + their
// number.
alignas(64) constexpr uint8_t kSlide[32] = {
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15};

// Puts the bytes whose bit is set before *end and moves it there. It also overwrites what is before
// them, up to 16 bytes in all.
VARVE_AVX2 VARVE_INLINE inline void Put16Before(uint32_t mask, __m128i bytes, uint8_t** end) {
  const CompressEntry& first = kCompressTable.of[mask & 0xFF];
  const CompressEntry& second = kCompressTable.of[(mask >> 8) & 0xFF];
  const size_t count = CountBits(mask & 0xFFFF);
  const __m128i halves = _mm_shuffle_epi8(bytes, Load64And64(first.low, second.high));
  const __m128i packed = _mm_shuffle_epi8(halves, Load128(first.close));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(*end - 16),
                   _mm_shuffle_epi8(packed, Load128(kSlide + count)));
  *end -= count;
}
VARVE_AVX2 VARVE_INLINE inline void Put32Before(uint32_t mask, __m256i bytes, uint8_t** end) {
  Put16Before(mask >> 16, _mm256_extracti128_si256(bytes, 1), end);
  Put16Before(mask, _mm256_castsi256_si128(bytes), end);
}

VARVE_AVX2 VARVE_INLINE inline __m256i NotLess(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a);
}

struct Divided256 {
  __m256i quotient;
  __m256i rest;
};
// As Divide512.
VARVE_AVX2 VARVE_INLINE inline Divided256 Divide256(__m256i x, __m256i reciprocal,
                                                    __m256i frequency) {
  const __m256i quotient = _mm256_mulhi_epu16(x, reciprocal);
  const __m256i rest = _mm256_sub_epi16(x, _mm256_mullo_epi16(quotient, frequency));
  const __m256i enough = _mm256_cmpgt_epi16(frequency, rest);  // the quotient is not one less
  return {_mm256_add_epi16(_mm256_add_epi16(quotient, _mm256_set1_epi16(1)), enough),
          _mm256_sub_epi16(rest, _mm256_andnot_si256(enough, frequency))};
}

// For codes of at most kVectors * 16 indices.
template <size_t kVectors>
VARVE_AVX2 void EncodeAvx2(const RansEncodeTable& table, size_t num_groups, const uint8_t* symbols,
                           size_t num_rounds, RansStates* states, RansEncodeEnds* ends) {
  constexpr size_t kWidth = 32;
  const auto frequencies = LoadTable<kVectors>(table.frequency.data());
  const auto starts = LoadTable<kVectors>(table.start.data());
  const auto reciprocals_low = LoadTable<kVectors>(table.reciprocal_low.data());
  const auto reciprocals_high = LoadTable<kVectors>(table.reciprocal_high.data());
  const __m256i escape = _mm256_set1_epi8(static_cast<char>(table.escape));
  const __m256i escape_start = _mm256_set1_epi8(static_cast<char>(table.start[table.escape]));
  const __m256i first = _mm256_set1_epi8(static_cast<char>(table.first));
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(table.low_bits));
  const __m256i kept = _mm256_set1_epi8(static_cast<char>(0xFF >> table.low_bits));
  RansEncodeEnds at = *ends;
  const size_t num_lanes = num_groups * kRansGroupLanes;
  const uint8_t* from = symbols + num_rounds * num_lanes;
  for (size_t step = num_rounds * (num_lanes / kWidth), lane = 0; step > 0; --step) {
    lane = (lane == 0 ? num_lanes : lane) - kWidth;
    from -= kWidth;
    const __m256i symbol = _mm256_and_si256(_mm256_srl_epi16(Load256(from), shift), kept);
    const __m256i index = _mm256_min_epu8(_mm256_sub_epi8(symbol, first), escape);
    const __m256i frequency = Look(frequencies, index);
    const __m256i start = Look(starts, index);
    const __m256i old_low = Load256(states->low.data() + lane);
    const __m256i old_high = Load256(states->high.data() + lane);
    const __m256i give = NotLess(old_high, frequency);
    Put32Before(static_cast<uint32_t>(_mm256_movemask_epi8(give)), old_low,
                &at.streams[lane / kRansGroupLanes]);
    const __m256i low = _mm256_blendv_epi8(old_low, old_high, give);
    const __m256i high = _mm256_andnot_si256(give, old_high);
    const __m256i reciprocal_low = Look(reciprocals_low, index);
    const __m256i reciprocal_high = Look(reciprocals_high, index);
    const Divided256 first_half = Divide256(
        _mm256_unpacklo_epi8(low, high), _mm256_unpacklo_epi8(reciprocal_low, reciprocal_high),
        _mm256_unpacklo_epi8(frequency, _mm256_setzero_si256()));
    const Divided256 second_half = Divide256(
        _mm256_unpackhi_epi8(low, high), _mm256_unpackhi_epi8(reciprocal_low, reciprocal_high),
        _mm256_unpackhi_epi8(frequency, _mm256_setzero_si256()));
    Store256(states->high.data() + lane,
             _mm256_packus_epi16(first_half.quotient, second_half.quotient));
    Store256(states->low.data() + lane,
             _mm256_add_epi8(_mm256_packus_epi16(first_half.rest, second_half.rest), start));
    const auto escaped =
        static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(start, escape_start)));
    if (escaped != 0) [[unlikely]] {
      Put32Before(escaped, _mm256_sll_epi16(symbol, shift), &at.escapes);
    }
  }
  *ends = at;
}

// Which bytes of the low and the high bytes of all lanes make the 16-bit numbers of the even lanes
// or of the odd ones.
struct PairTable {
  alignas(64) uint8_t even[64];
  alignas(64) uint8_t odd[64];
  constexpr PairTable() : even{}, odd{} {
    for (uint8_t i = 0; i < 64; ++i) {
      const auto lane = static_cast<uint8_t>(i & ~1);
      even[i] = static_cast<uint8_t>(i % 2 * 64 + lane);
      odd[i] = static_cast<uint8_t>(i % 2 * 64 + lane + 1);
    }
  }
};
constexpr PairTable kPairs;

// Puts the bytes of a mask before *end and moves it there.
VARVE_AVX512 VARVE_INLINE inline void PutBefore(__mmask64 mask, __m512i bytes, uint8_t** end) {
  const auto count = static_cast<unsigned>(_mm_popcnt_u64(mask));
  *end -= count;
  _mm512_mask_storeu_epi8(*end, _bzhi_u64(~uint64_t{0}, count),
                          _mm512_maskz_compress_epi8(mask, bytes));
}

struct Divided512 {
  __m512i quotient;
  __m512i rest;
};
// Divides 16-bit numbers. The product with the reciprocal gives the quotient or one less, because
// x < 256 * frequency.
VARVE_AVX512 VARVE_INLINE inline Divided512 Divide512(__m512i x, __m512i reciprocal,
                                                      __m512i frequency) {
  const __m512i quotient = _mm512_mulhi_epu16(x, reciprocal);
  const __m512i rest = _mm512_sub_epi16(x, _mm512_mullo_epi16(quotient, frequency));
  const __mmask32 one_less = _mm512_cmpge_epu16_mask(rest, frequency);
  return {_mm512_mask_sub_epi16(quotient, one_less, quotient, _mm512_set1_epi16(-1)),
          _mm512_mask_sub_epi16(rest, one_less, rest, frequency)};
}

template <size_t kGroups, bool kHasLowBits>
VARVE_AVX512 void EncodeAvx512(const RansEncodeTable& table, const uint8_t* symbols,
                               size_t num_rounds, RansStates* states, RansEncodeEnds* ends) {
  const __m512i frequencies = _mm512_load_si512(table.frequency.data());
  const __m512i starts = _mm512_load_si512(table.start.data());
  const __m512i reciprocals0 = _mm512_load_si512(table.reciprocal.data());
  const __m512i reciprocals1 = _mm512_load_si512(table.reciprocal.data() + 32);
  const __m512i pair_even = _mm512_load_si512(kPairs.even);
  const __m512i pair_odd = _mm512_load_si512(kPairs.odd);
  const __m512i even = _mm512_set1_epi16(0xFF);
  const __m512i escape = _mm512_set1_epi8(static_cast<char>(table.escape));
  const __m512i escape_start = _mm512_set1_epi8(static_cast<char>(table.start[table.escape]));
  const __m512i first = _mm512_set1_epi8(static_cast<char>(table.first));
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(table.low_bits));
  const __m512i kept = _mm512_set1_epi8(static_cast<char>(0xFF >> table.low_bits));
  __m512i low[kGroups];
  __m512i high[kGroups];
  uint8_t* streams[kGroups];
  uint8_t* escapes = ends->escapes;
  for (size_t g = 0; g < kGroups; ++g) {
    low[g] = _mm512_load_si512(states->low.data() + 64 * g);
    high[g] = _mm512_load_si512(states->high.data() + 64 * g);
    streams[g] = ends->streams[g];
  }
  const uint8_t* from = symbols + num_rounds * kGroups * kRansGroupLanes;
  for (; num_rounds > 0; --num_rounds) {
    from -= kGroups * kRansGroupLanes;
#pragma GCC unroll 4
    for (size_t before = 0; before < kGroups; ++before) {
      const size_t g = kGroups - 1 - before;
      __m512i symbol = _mm512_loadu_si512(from + 64 * g);
      if (kHasLowBits) symbol = _mm512_and_si512(_mm512_srl_epi16(symbol, shift), kept);
      const __m512i index = _mm512_min_epu8(_mm512_sub_epi8(symbol, first), escape);
      const __m512i frequency = _mm512_permutexvar_epi8(index, frequencies);
      const __m512i start = _mm512_permutexvar_epi8(index, starts);
      const __mmask64 give = _mm512_cmpge_epu8_mask(high[g], frequency);
      PutBefore(give, low[g], &streams[g]);
      const __m512i x_low = _mm512_mask_mov_epi8(low[g], give, high[g]);
      const __m512i x_high = _mm512_maskz_mov_epi8(_knot_mask64(give), high[g]);
      const Divided512 even_lanes =
          Divide512(_mm512_permutex2var_epi8(x_low, pair_even, x_high),
                    _mm512_permutex2var_epi16(reciprocals0, index, reciprocals1),
                    _mm512_and_si512(even, frequency));
      const Divided512 odd_lanes = Divide512(
          _mm512_permutex2var_epi8(x_low, pair_odd, x_high),
          _mm512_permutex2var_epi16(reciprocals0, _mm512_srli_epi16(index, 8), reciprocals1),
          _mm512_srli_epi16(frequency, 8));
      high[g] = _mm512_or_si512(even_lanes.quotient, _mm512_slli_epi16(odd_lanes.quotient, 8));
      low[g] = _mm512_add_epi8(
          _mm512_or_si512(even_lanes.rest, _mm512_slli_epi16(odd_lanes.rest, 8)), start);
      const __mmask64 escaped = _mm512_cmpeq_epi8_mask(start, escape_start);
      if (escaped != 0) [[unlikely]] {
        if (kHasLowBits) symbol = _mm512_sll_epi16(symbol, shift);
        PutBefore(escaped, symbol, &escapes);
      }
    }
  }
  ends->escapes = escapes;
  for (size_t g = 0; g < kGroups; ++g) {
    _mm512_store_si512(states->low.data() + 64 * g, low[g]);
    _mm512_store_si512(states->high.data() + 64 * g, high[g]);
    ends->streams[g] = streams[g];
  }
}

template <size_t kGroups>
void EncodeGroups(const RansEncodeTable& table, const uint8_t* symbols, size_t num_rounds,
                  RansStates* states, RansEncodeEnds* ends) {
  return table.low_bits > 0
             ? EncodeAvx512<kGroups, true>(table, symbols, num_rounds, states, ends)
             : EncodeAvx512<kGroups, false>(table, symbols, num_rounds, states, ends);
}

#endif  // VARVE_X86

}  // namespace

void EncodeRansRounds([[maybe_unused]] CpuLevel level, const RansEncodeTable& table,
                      size_t num_groups, const uint8_t* symbols, size_t num_rounds,
                      RansStates* states, RansEncodeEnds* ends) {
#if VARVE_X86
  if (level == CpuLevel::kAvx512) {
    if (num_groups == 4) return EncodeGroups<4>(table, symbols, num_rounds, states, ends);
    if (num_groups == 2) return EncodeGroups<2>(table, symbols, num_rounds, states, ends);
    return EncodeGroups<1>(table, symbols, num_rounds, states, ends);
  }
  if (level == CpuLevel::kAvx2) {
    return table.escape < 16 ? EncodeAvx2<1>(table, num_groups, symbols, num_rounds, states, ends)
                             : EncodeAvx2<4>(table, num_groups, symbols, num_rounds, states, ends);
  }
#endif
  EncodePortable(table, num_groups, symbols, num_rounds, states, ends);
}

}  // namespace varve::internal
