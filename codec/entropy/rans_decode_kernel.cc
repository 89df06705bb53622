// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>

#include "codec/entropy/rans_avx2.h"
#include "codec/entropy/rans_kernel.h"
#include "codec/planes/compress_avx2.h"

#if VARVE_X86
#include <immintrin.h>
#endif

namespace varve::internal {

namespace {

// A state x = 256 * high + low becomes frequency * high + low - start. If that is below 256, the
// next byte of the stream is appended to it.
void DecodePortable(const RansDecodeTable& table, size_t num_groups, size_t num_rounds,
                    RansStates* states, RansDecodeEnds* ends, uint8_t* to) {
  RansStates lanes = *states;  // a store of symbols might change the others
  const uint8_t* escapes = ends->escapes;
  for (size_t group = 0; group < num_rounds * num_groups; ++group, to += kRansGroupLanes) {
    const size_t g = group % num_groups;
    const uint8_t* stream = ends->streams[g];
    for (size_t i = 0; i < kRansGroupLanes; ++i) {
      uint8_t& low = lanes.low[g * kRansGroupLanes + i];
      uint8_t& high = lanes.high[g * kRansGroupLanes + i];
      const size_t index = table.index_of[low];
      const unsigned x = unsigned{table.frequency[index]} * high + low - table.start[index];
      // This has no branch, because nobody could predict it.
      const unsigned take = x < 256 ? 1u : 0u;
      const unsigned next = x << (8 * take) | (*stream & (0u - take));
      stream += take;
      low = static_cast<uint8_t>(next);
      high = static_cast<uint8_t>(next >> 8);
      to[i] = index == table.escape ? *escapes++ : table.value[index];
    }
    ends->streams[g] = stream;
  }
  ends->escapes = escapes;
  *states = lanes;
}

#if VARVE_X86

// Goes from a node of a search tree to the one below it.
VARVE_AVX2 VARVE_INLINE inline __m256i Descend(__m256i key, __m256i threshold, __m256i node) {
  return _mm256_sub_epi8(_mm256_add_epi8(node, node), _mm256_cmpgt_epi8(key, threshold));
}

// Finds the indices of slots among 2^kDepth. Returns them plus 2^kDepth.
template <unsigned kDepth>
VARVE_AVX2 VARVE_INLINE inline __m256i FindIndex(const uint8_t* tree, __m256i slot) {
  const __m256i key = _mm256_xor_si256(slot, _mm256_set1_epi8(-128));
  const ByteTable<1> top = LoadTable<1>(tree);
  __m256i node = Descend(key, _mm256_set1_epi8(static_cast<char>(tree[1])), _mm256_set1_epi8(1));
  node = Descend(key, Look(top, node), node);
  node = Descend(key, Look(top, node), node);
  node = Descend(key, Look(top, node), node);
  if constexpr (kDepth == 6) {
    node = Descend(key, Look(LoadTable<1>(tree + 16), node), node);
    node = Descend(key, Look(LoadTable<2>(tree + 32), node), node);
  }
  return node;
}

// For codes of at most 2^kDepth indices.
template <unsigned kDepth>
VARVE_AVX2 void DecodeAvx2(const RansDecodeTable& table, size_t num_groups, size_t num_rounds,
                           RansStates* states, RansDecodeEnds* ends, uint8_t* to) {
  constexpr size_t kVectors = (size_t{1} << kDepth) / 16;
  constexpr size_t kWidth = 32;
  const auto frequencies = LoadTable<kVectors>(table.frequency.data());
  const auto starts = LoadTable<kVectors>(table.start.data());
  const auto values = LoadTable<kVectors>(table.value.data());
  const __m256i even = _mm256_set1_epi16(0xFF);
  const __m256i escape = _mm256_set1_epi8(static_cast<char>(table.escape + (1 << kDepth)));
  const uint8_t* const tree = kDepth == 4 ? table.small_tree.data() : table.tree.data();
  const uint8_t* escapes = ends->escapes;
  RansDecodeEnds at = *ends;
  for (; num_rounds > 0; --num_rounds, to += num_groups * kRansGroupLanes) {
    for (size_t g = 0; g < num_groups; ++g) {
      const uint8_t* stream = at.streams[g];
#pragma GCC unroll 2
      for (size_t i = g * kRansGroupLanes; i < (g + 1) * kRansGroupLanes; i += kWidth) {
        const __m256i slot = Load256(states->low.data() + i);
        const __m256i high = Load256(states->high.data() + i);
        const __m256i index = FindIndex<kDepth>(tree, slot);
        const __m256i frequency = Look(frequencies, index);
        const __m256i rest = _mm256_sub_epi8(slot, Look(starts, index));
        const __m256i even_x = _mm256_add_epi16(
            _mm256_mullo_epi16(_mm256_and_si256(even, frequency), _mm256_and_si256(even, high)),
            _mm256_and_si256(even, rest));
        const __m256i odd_x =
            _mm256_add_epi16(_mm256_mulhi_epu16(_mm256_andnot_si256(even, frequency),
                                                _mm256_andnot_si256(even, high)),
                             _mm256_srli_epi16(rest, 8));
        const __m256i next_low =
            _mm256_or_si256(_mm256_and_si256(even, even_x), _mm256_slli_epi16(odd_x, 8));
        const __m256i next_high =
            _mm256_or_si256(_mm256_srli_epi16(even_x, 8), _mm256_andnot_si256(even, odd_x));
        const __m256i take = _mm256_cmpeq_epi8(next_high, _mm256_setzero_si256());
        Store256(states->high.data() + i,
                 _mm256_or_si256(next_high, _mm256_and_si256(take, next_low)));
        Store256(states->low.data() + i,
                 _mm256_or_si256(_mm256_andnot_si256(take, next_low), Expand32(take, &stream)));
        __m256i value = Look(values, index);
        const __m256i escaped = _mm256_cmpeq_epi8(index, escape);
        if (_mm256_testz_si256(escaped, escaped) == 0) [[unlikely]] {
          value = _mm256_or_si256(value, Expand32(escaped, &escapes));
        }
        Store256(to + i, value);
      }
      at.streams[g] = stream;
    }
  }
  at.escapes = escapes;
  *ends = at;
}

// Which bytes of two vectors of 16-bit numbers, even lanes and odd ones, make the low or the high
// bytes of all lanes.
struct MergeTable {
  alignas(64) uint8_t low[64];
  alignas(64) uint8_t high[64];
  constexpr MergeTable() : low{}, high{} {
    for (uint8_t i = 0; i < 64; ++i) {
      low[i] = i % 2 == 0 ? i : static_cast<uint8_t>(64 + i - 1);
      high[i] = i % 2 == 0 ? static_cast<uint8_t>(i + 1) : static_cast<uint8_t>(64 + i);
    }
  }
};
constexpr MergeTable kMerge;

// The compiler would make it one with the expansion, which is slower from memory.
VARVE_AVX512 VARVE_INLINE inline __m512i Load512(const uint8_t* from) {
  __m512i bytes = _mm512_loadu_si512(from);
  asm("" : "+v"(bytes));
  return bytes;
}

template <size_t kGroups>
VARVE_AVX512 void DecodeAvx512(const RansDecodeTable& table, size_t num_rounds, RansStates* states,
                               RansDecodeEnds* ends, uint8_t* to) {
  const __m512i slots0 = _mm512_load_si512(table.index_of.data());
  const __m512i slots1 = _mm512_load_si512(table.index_of.data() + 64);
  const __m512i slots2 = _mm512_load_si512(table.index_of.data() + 128);
  const __m512i slots3 = _mm512_load_si512(table.index_of.data() + 192);
  const __m512i frequencies = _mm512_load_si512(table.frequency.data());
  const __m512i starts = _mm512_load_si512(table.start.data());
  const __m512i values = _mm512_load_si512(table.value.data());
  const __m512i merge_low = _mm512_load_si512(kMerge.low);
  const __m512i merge_high = _mm512_load_si512(kMerge.high);
  const __m512i even = _mm512_set1_epi16(0xFF);
  const __m512i escape = _mm512_set1_epi8(static_cast<char>(table.escape));
  __m512i low[kGroups];
  __m512i high[kGroups];
  const uint8_t* streams[kGroups];
  const uint8_t* escapes = ends->escapes;
  for (size_t g = 0; g < kGroups; ++g) {
    low[g] = _mm512_load_si512(states->low.data() + 64 * g);
    high[g] = _mm512_load_si512(states->high.data() + 64 * g);
    streams[g] = ends->streams[g];
  }
  for (; num_rounds > 0; --num_rounds, to += kGroups * kRansGroupLanes) {
#pragma GCC unroll 4
    for (size_t g = 0; g < kGroups; ++g) {
      const __m512i slot = low[g];
      const __m512i index = _mm512_mask_blend_epi8(_mm512_movepi8_mask(slot),
                                                   _mm512_permutex2var_epi8(slots0, slot, slots1),
                                                   _mm512_permutex2var_epi8(slots2, slot, slots3));
      const __m512i frequency = _mm512_permutexvar_epi8(index, frequencies);
      const __m512i rest = _mm512_sub_epi8(slot, _mm512_permutexvar_epi8(index, starts));
      const __m512i even_x = _mm512_add_epi16(
          _mm512_mullo_epi16(_mm512_and_si512(even, frequency), _mm512_and_si512(even, high[g])),
          _mm512_and_si512(even, rest));
      const __m512i odd_x =
          _mm512_add_epi16(_mm512_mulhi_epu16(_mm512_andnot_si512(even, frequency),
                                              _mm512_andnot_si512(even, high[g])),
                           _mm512_srli_epi16(rest, 8));
      const __m512i next_low = _mm512_permutex2var_epi8(even_x, merge_low, odd_x);
      const __m512i next_high = _mm512_permutex2var_epi8(even_x, merge_high, odd_x);
      const __mmask64 take = _mm512_testn_epi8_mask(next_high, next_high);
      high[g] = _mm512_mask_mov_epi8(next_high, take, next_low);
      low[g] = _mm512_mask_expand_epi8(next_low, take, Load512(streams[g]));
      streams[g] += _mm_popcnt_u64(take);
      // Escapes are too rare to be predicted, so this has no branch.
      const __mmask64 escaped = _mm512_cmpeq_epi8_mask(index, escape);
      const __m512i value = _mm512_mask_expand_epi8(_mm512_permutexvar_epi8(index, values), escaped,
                                                    Load512(escapes));
      escapes += _mm_popcnt_u64(escaped);
      _mm512_storeu_si512(to + 64 * g, value);
    }
  }
  ends->escapes = escapes;
  for (size_t g = 0; g < kGroups; ++g) {
    _mm512_store_si512(states->low.data() + 64 * g, low[g]);
    _mm512_store_si512(states->high.data() + 64 * g, high[g]);
    ends->streams[g] = streams[g];
  }
}

#endif  // VARVE_X86

}  // namespace

void DecodeRansRounds([[maybe_unused]] CpuLevel level, const RansDecodeTable& table,
                      size_t num_groups, size_t num_rounds, RansStates* states,
                      RansDecodeEnds* ends, uint8_t* symbols) {
#if VARVE_X86
  if (level == CpuLevel::kAvx512) {
    if (num_groups == 4) return DecodeAvx512<4>(table, num_rounds, states, ends, symbols);
    if (num_groups == 2) return DecodeAvx512<2>(table, num_rounds, states, ends, symbols);
    return DecodeAvx512<1>(table, num_rounds, states, ends, symbols);
  }
  if (level == CpuLevel::kAvx2) {
    return table.escape < 16 ? DecodeAvx2<4>(table, num_groups, num_rounds, states, ends, symbols)
                             : DecodeAvx2<6>(table, num_groups, num_rounds, states, ends, symbols);
  }
#endif
  DecodePortable(table, num_groups, num_rounds, states, ends, symbols);
}

}  // namespace varve::internal
