// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codec/entropy/rans_kernel.h"

#if VARVE_X86
#include <immintrin.h>
#endif

namespace varve::internal {

namespace {

// Numbers of `bits` bits: one in each byte, in each pair of bytes, and in each four.
constexpr uint64_t EachByte(unsigned bits) {
  return ((uint64_t{1} << bits) - 1) * 0x0101010101010101;
}
constexpr uint64_t EachPair(unsigned bits) {
  return ((uint64_t{1} << bits) - 1) * 0x0001000100010001;
}
constexpr uint64_t EachFour(unsigned bits) {
  return ((uint64_t{1} << bits) - 1) * 0x0000000100000001;
}

// A word is read and written whole, which is much faster than as many bytes as it needs.
template <unsigned kBits>
void PackWords(const uint8_t* symbols, size_t n, uint8_t* packed) {
  for (size_t i = 0; i < n; i += 8, packed += kBits) {
    uint64_t x;
    std::memcpy(&x, symbols + i, sizeof(x));
    x &= EachByte(kBits);
    x = (x | x >> (8 - kBits)) & EachPair(2 * kBits);
    x = (x | x >> (16 - 2 * kBits)) & EachFour(4 * kBits);
    x |= x >> (32 - 4 * kBits);
    std::memcpy(packed, &x, sizeof(x));
  }
}

template <unsigned kBits>
void AddWord(uint64_t x, uint8_t* symbols) {
  x = ((x & 0xFFFFFFFF) | x << (32 - 4 * kBits)) & EachFour(4 * kBits);
  x = (x | x << (16 - 2 * kBits)) & EachPair(2 * kBits);
  x = (x | x << (8 - kBits)) & EachByte(kBits);
  uint64_t high;
  std::memcpy(&high, symbols, sizeof(high));
  x |= high;
  std::memcpy(symbols, &x, sizeof(x));
}

template <unsigned kBits>
void AddWords(const uint8_t* packed, size_t begin, size_t n, uint8_t* symbols) {
  const size_t num_packed = n / 8 * kBits;
  for (size_t i = begin; i < n; i += 8) {
    const size_t at = i / 8 * kBits;
    uint64_t x = 0;
    if (at + sizeof(x) <= num_packed) {
      std::memcpy(&x, packed + at, sizeof(x));
    } else {
      std::memcpy(&x, packed + at, num_packed - at);
    }
    AddWord<kBits>(x, symbols + i);
  }
}

#if VARVE_X86

// The bytes that 64-bit lane k needs lie from k * bits on.
VARVE_AVX512 size_t AddLowBitsAvx512(unsigned bits, const uint8_t* packed, size_t n,
                                     uint8_t* symbols) {
  alignas(64) uint8_t spread[64];
  uint64_t shifts = 0;
  for (unsigned i = 0; i < 64; ++i) spread[i] = static_cast<uint8_t>(i / 8 * bits + i % 8);
  for (uint64_t i = 0; i < 8; ++i) shifts |= i * bits << (8 * i);
  const __m512i from = _mm512_load_si512(spread);
  const __m512i shift = _mm512_set1_epi64(static_cast<int64_t>(shifts));
  const __m512i kept = _mm512_set1_epi8(static_cast<char>((1 << bits) - 1));
  const __mmask64 bytes = (uint64_t{1} << (8 * bits)) - 1;
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i words =
        _mm512_permutexvar_epi8(from, _mm512_maskz_loadu_epi8(bytes, packed + i / 8 * bits));
    const __m512i low = _mm512_and_si512(kept, _mm512_multishift_epi64_epi8(shift, words));
    const __m512i high = _mm512_loadu_si512(symbols + i);
    _mm512_storeu_si512(symbols + i, _mm512_or_si512(low, high));
  }
  return i;
}

// Neighbours are moved together, then pairs of them, then halves of a 64-bit lane.
VARVE_AVX512 size_t PackLowBitsAvx512(unsigned bits, const uint8_t* symbols, size_t n,
                                      uint8_t* packed) {
  alignas(64) uint8_t gather[64] = {};
  for (unsigned i = 0; i < 8 * bits; ++i) {
    gather[i] = static_cast<uint8_t>(i / bits * 8 + i % bits);
  }
  const __m512i from = _mm512_load_si512(gather);
  const __m512i kept = _mm512_set1_epi8(static_cast<char>((1 << bits) - 1));
  const __m512i pair = _mm512_set1_epi16(static_cast<int16_t>(1 | 1 << (8 + bits)));
  const __m512i four = _mm512_set1_epi32(1 | 1 << (16 + 2 * bits));
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(32 - 4 * bits));
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i low = _mm512_and_si512(kept, _mm512_loadu_si512(symbols + i));
    const __m512i fours = _mm512_madd_epi16(_mm512_maddubs_epi16(low, pair), four);
    const __m512i eights = _mm512_or_si512(fours, _mm512_srl_epi64(fours, shift));
    _mm512_storeu_si512(packed + i / 8 * bits, _mm512_permutexvar_epi8(from, eights));
  }
  return i;
}

#endif  // VARVE_X86

}  // namespace

void PackLowBits([[maybe_unused]] CpuLevel level, unsigned bits, const uint8_t* symbols, size_t n,
                 uint8_t* packed) {
#if VARVE_X86
  if (level == CpuLevel::kAvx512) {
    const size_t done = PackLowBitsAvx512(bits, symbols, n, packed);
    symbols += done;
    packed += done / 8 * bits;
    n -= done;
  }
#endif
  switch (bits) {
    case 1:
      return PackWords<1>(symbols, n, packed);
    case 2:
      return PackWords<2>(symbols, n, packed);
    case 3:
      return PackWords<3>(symbols, n, packed);
    default:
      return PackWords<4>(symbols, n, packed);
  }
}

void AddLowBits([[maybe_unused]] CpuLevel level, unsigned bits, const uint8_t* packed, size_t n,
                uint8_t* symbols) {
  size_t done = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) done = AddLowBitsAvx512(bits, packed, n, symbols);
#endif
  switch (bits) {
    case 1:
      return AddWords<1>(packed, done, n, symbols);
    case 2:
      return AddWords<2>(packed, done, n, symbols);
    case 3:
      return AddWords<3>(packed, done, n, symbols);
    default:
      return AddWords<4>(packed, done, n, symbols);
  }
}

}  // namespace varve::internal
