// SPDX-License-Identifier: Apache-2.0
#include <bit>
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

void AddLowBitsOf(unsigned bits, const uint8_t* packed, size_t begin, size_t end,
                  uint8_t* symbols) {
  for (size_t i = begin; i < end; i += 8) {
    uint64_t x = 0;
    std::memcpy(&x, packed + i / 8 * bits, bits);
    x = (x | x << (32 - 4 * bits)) & EachFour(4 * bits);
    x = (x | x << (16 - 2 * bits)) & EachPair(2 * bits);
    x = (x | x << (8 - bits)) & EachByte(bits);
    uint64_t high;
    std::memcpy(&high, symbols + i, sizeof(high));
    x |= high;
    std::memcpy(symbols + i, &x, sizeof(x));
  }
}

#if VARVE_X86

// The bytes that 64-bit lane k needs lie from k * bits on.
VARVE_AVX512 size_t AddLowBitsAvx512(unsigned bits, const uint8_t* packed, size_t n,
                                     uint8_t* symbols) {
  alignas(64) uint8_t spread[64];
  uint64_t shifts = 0;
  for (unsigned i = 0; i < 64; ++i) spread[i] = static_cast<uint8_t>(i / 8 * bits + i % 8);
  for (unsigned i = 0; i < 8; ++i) shifts |= uint64_t{i * bits} << (8 * i);
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

#endif  // VARVE_X86

}  // namespace

void PackLowBits(unsigned bits, const uint8_t* symbols, size_t n, uint8_t* packed) {
  for (size_t i = 0; i < n; i += 8) {
    uint64_t x;
    std::memcpy(&x, symbols + i, sizeof(x));
    x &= EachByte(bits);
    x = (x | x >> (8 - bits)) & EachPair(2 * bits);
    x = (x | x >> (16 - 2 * bits)) & EachFour(4 * bits);
    x |= x >> (32 - 4 * bits);
    std::memcpy(packed + i / 8 * bits, &x, bits);
  }
}

void AddLowBits([[maybe_unused]] CpuLevel level, unsigned bits, const uint8_t* packed, size_t n,
                uint8_t* symbols) {
  size_t done = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) done = AddLowBitsAvx512(bits, packed, n, symbols);
#endif
  AddLowBitsOf(bits, packed, done, n, symbols);
}

}  // namespace varve::internal
