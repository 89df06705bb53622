// SPDX-License-Identifier: Apache-2.0
#include "codec/planes/plane_kernel.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/planes/compress_avx2.h"

namespace varve::internal {

namespace {

// Elements per round of the 8-byte kernels, which go through a buffer that fits the L1 cache.
constexpr size_t kRound = 1024;

// The vector kernels do whole vectors and return how many elements that was. These functions
// finish.
void SplitRest(const uint8_t* elements, size_t begin, size_t end,
               std::span<uint8_t* const> planes) {
  const size_t width = planes.size();
  for (size_t i = begin; i < end; ++i) {
    for (size_t p = 0; p < width; ++p) planes[p][i] = elements[i * width + p];
  }
}

void JoinRest(std::span<const uint8_t* const> planes, size_t begin, size_t end, uint8_t* elements) {
  const size_t width = planes.size();
  for (size_t i = begin; i < end; ++i) {
    for (size_t p = 0; p < width; ++p) elements[i * width + p] = planes[p][i];
  }
}

template <typename T>
void RotateRight(uint8_t* elements, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    T element;
    std::memcpy(&element, elements + i * sizeof(T), sizeof(T));
    element = std::rotr(element, 1);
    std::memcpy(elements + i * sizeof(T), &element, sizeof(T));
  }
}

#if VARVE_X86

VARVE_AVX2 size_t Split2Avx2(const uint8_t* in, size_t n, uint8_t* low, uint8_t* high) {
  const __m256i mask = _mm256_set1_epi16(0xFF);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i a = Load256(in + 2 * i);
    const __m256i b = Load256(in + 2 * i + 32);
    const __m256i l = _mm256_packus_epi16(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    const __m256i h = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    Store256(low + i, _mm256_permute4x64_epi64(l, 0xD8));
    Store256(high + i, _mm256_permute4x64_epi64(h, 0xD8));
  }
  return i;
}

// Returns elements rotated right by one, or unchanged.
template <bool kRotated>
VARVE_AVX2 VARVE_INLINE inline __m256i Elements2(__m256i v) {
  return kRotated ? _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15)) : v;
}
template <bool kRotated>
VARVE_AVX2 VARVE_INLINE inline __m256i Elements4(__m256i v) {
  return kRotated ? _mm256_or_si256(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31)) : v;
}

template <bool kRotated>
VARVE_AVX2 size_t Join2Avx2(const uint8_t* low, const uint8_t* high, size_t n, uint8_t* out) {
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i l = _mm256_permute4x64_epi64(Load256(low + i), 0xD8);
    const __m256i h = _mm256_permute4x64_epi64(Load256(high + i), 0xD8);
    Store256(out + 2 * i, Elements2<kRotated>(_mm256_unpacklo_epi8(l, h)));
    Store256(out + 2 * i + 32, Elements2<kRotated>(_mm256_unpackhi_epi8(l, h)));
  }
  return i;
}

// Moves byte p of four elements to 32-bit lane p of each 128-bit half. It is its own inverse.
VARVE_AVX2 inline __m256i Transpose4x4Bytes(__m256i v) {
  return _mm256_shuffle_epi8(
      v, _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5,
                          9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}

// The 4x4 transpose of 64-bit lanes. It is its own inverse.
VARVE_AVX2 inline void Transpose4x4Words(__m256i v[4]) {
  const __m256i a = _mm256_unpacklo_epi64(v[0], v[1]);
  const __m256i b = _mm256_unpackhi_epi64(v[0], v[1]);
  const __m256i c = _mm256_unpacklo_epi64(v[2], v[3]);
  const __m256i d = _mm256_unpackhi_epi64(v[2], v[3]);
  v[0] = _mm256_permute2x128_si256(a, c, 0x20);
  v[1] = _mm256_permute2x128_si256(b, d, 0x20);
  v[2] = _mm256_permute2x128_si256(a, c, 0x31);
  v[3] = _mm256_permute2x128_si256(b, d, 0x31);
}

VARVE_AVX2 size_t Split4Avx2(const uint8_t* in, size_t n, std::span<uint8_t* const> planes) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i v[4];
    for (size_t k = 0; k < 4; ++k) {
      v[k] = _mm256_permutevar8x32_epi32(Transpose4x4Bytes(Load256(in + 4 * i + 32 * k)), order);
    }
    Transpose4x4Words(v);
    for (size_t p = 0; p < 4; ++p) Store256(planes[p] + i, v[p]);
  }
  return i;
}

template <bool kRotated>
VARVE_AVX2 size_t Join4Avx2(std::span<const uint8_t* const> planes, size_t n, uint8_t* out) {
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i v[4];
    for (size_t p = 0; p < 4; ++p) v[p] = Load256(planes[p] + i);
    Transpose4x4Words(v);
    for (size_t k = 0; k < 4; ++k) {
      const __m256i joined = Transpose4x4Bytes(_mm256_permutevar8x32_epi32(v[k], order));
      Store256(out + 4 * i + 32 * k, Elements4<kRotated>(joined));
    }
  }
  return i;
}

// Fills 64 byte indices by a rule. The compiler folds it into a constant.
template <typename Rule>
struct ByteIndices {
  alignas(64) uint8_t at[64];
  constexpr explicit ByteIndices(Rule rule) : at{} {
    for (int i = 0; i < 64; ++i) at[i] = static_cast<uint8_t>(rule(i));
  }
};

VARVE_AVX512 size_t Split2Avx512(const uint8_t* in, size_t n, uint8_t* low, uint8_t* high) {
  static constexpr ByteIndices kEven([](int i) { return 2 * i; });
  static constexpr ByteIndices kOdd([](int i) { return 2 * i + 1; });
  const __m512i even = _mm512_load_si512(kEven.at);
  const __m512i odd = _mm512_load_si512(kOdd.at);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i a = _mm512_loadu_si512(in + 2 * i);
    const __m512i b = _mm512_loadu_si512(in + 2 * i + 64);
    _mm512_storeu_si512(low + i, _mm512_permutex2var_epi8(a, even, b));
    _mm512_storeu_si512(high + i, _mm512_permutex2var_epi8(a, odd, b));
  }
  return i;
}

VARVE_AVX512 size_t Join2Avx512(const uint8_t* low, const uint8_t* high, size_t n, uint8_t* out) {
  static constexpr ByteIndices kFirst([](int i) { return i / 2 + 64 * (i % 2); });
  static constexpr ByteIndices kSecond([](int i) { return 32 + i / 2 + 64 * (i % 2); });
  const __m512i first = _mm512_load_si512(kFirst.at);
  const __m512i second = _mm512_load_si512(kSecond.at);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i l = _mm512_loadu_si512(low + i);
    const __m512i h = _mm512_loadu_si512(high + i);
    _mm512_storeu_si512(out + 2 * i, _mm512_permutex2var_epi8(l, first, h));
    _mm512_storeu_si512(out + 2 * i + 64, _mm512_permutex2var_epi8(l, second, h));
  }
  return i;
}

// The 4x4 transpose of 128-bit lanes. It is its own inverse.
VARVE_AVX512 inline void Transpose4x4Lanes(__m512i v[4]) {
  const __m512i a = _mm512_shuffle_i32x4(v[0], v[1], 0x44);
  const __m512i b = _mm512_shuffle_i32x4(v[0], v[1], 0xEE);
  const __m512i c = _mm512_shuffle_i32x4(v[2], v[3], 0x44);
  const __m512i d = _mm512_shuffle_i32x4(v[2], v[3], 0xEE);
  v[0] = _mm512_shuffle_i32x4(a, c, 0x88);
  v[1] = _mm512_shuffle_i32x4(a, c, 0xDD);
  v[2] = _mm512_shuffle_i32x4(b, d, 0x88);
  v[3] = _mm512_shuffle_i32x4(b, d, 0xDD);
}

VARVE_AVX512 size_t Split4Avx512(const uint8_t* in, size_t n, std::span<uint8_t* const> planes) {
  static constexpr ByteIndices kByPlane([](int i) { return 4 * (i % 16) + i / 16; });
  const __m512i by_plane = _mm512_load_si512(kByPlane.at);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m512i v[4];
    for (size_t k = 0; k < 4; ++k) {
      v[k] = _mm512_permutexvar_epi8(by_plane, _mm512_loadu_si512(in + 4 * i + 64 * k));
    }
    Transpose4x4Lanes(v);
    for (size_t p = 0; p < 4; ++p) _mm512_storeu_si512(planes[p] + i, v[p]);
  }
  return i;
}

VARVE_AVX512 size_t Join4Avx512(std::span<const uint8_t* const> planes, size_t n, uint8_t* out) {
  static constexpr ByteIndices kByElement([](int i) { return i / 4 + 16 * (i % 4); });
  const __m512i by_element = _mm512_load_si512(kByElement.at);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m512i v[4];
    for (size_t p = 0; p < 4; ++p) v[p] = _mm512_loadu_si512(planes[p] + i);
    Transpose4x4Lanes(v);
    for (size_t k = 0; k < 4; ++k) {
      _mm512_storeu_si512(out + 4 * i + 64 * k, _mm512_permutexvar_epi8(by_element, v[k]));
    }
  }
  return i;
}

#endif  // VARVE_X86

void Split2(CpuLevel level, const uint8_t* in, size_t n, std::span<uint8_t* const> planes) {
  size_t done = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) done = Split2Avx512(in, n, planes[0], planes[1]);
  if (level == CpuLevel::kAvx2) done = Split2Avx2(in, n, planes[0], planes[1]);
#endif
  SplitRest(in, done, n, planes);
}

void Join2(CpuLevel level, std::span<const uint8_t* const> planes, size_t n, uint8_t* out) {
  size_t done = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) done = Join2Avx512(planes[0], planes[1], n, out);
  if (level == CpuLevel::kAvx2) done = Join2Avx2<false>(planes[0], planes[1], n, out);
#endif
  JoinRest(planes, done, n, out);
}

void Split4(CpuLevel level, const uint8_t* in, size_t n, std::span<uint8_t* const> planes) {
  size_t done = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) done = Split4Avx512(in, n, planes);
  if (level == CpuLevel::kAvx2) done = Split4Avx2(in, n, planes);
#endif
  SplitRest(in, done, n, planes);
}

void Join4(CpuLevel level, std::span<const uint8_t* const> planes, size_t n, uint8_t* out) {
  size_t done = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) done = Join4Avx512(planes, n, out);
  if (level == CpuLevel::kAvx2) done = Join4Avx2<false>(planes, n, out);
#endif
  JoinRest(planes, done, n, out);
}

// Even bytes and odd bytes of 8-byte elements are 4-byte elements of the even and odd planes.
void Split8(CpuLevel level, const uint8_t* in, size_t n, std::span<uint8_t* const> planes) {
  uint8_t even[4 * kRound];
  uint8_t odd[4 * kRound];
  uint8_t* const halves[2] = {even, odd};
  for (size_t i = 0; i < n; i += kRound) {
    const size_t count = std::min(kRound, n - i);
    Split2(level, in + 8 * i, 4 * count, halves);
    for (size_t h = 0; h < 2; ++h) {
      uint8_t* const quarter[4] = {planes[h] + i, planes[h + 2] + i, planes[h + 4] + i,
                                   planes[h + 6] + i};
      Split4(level, halves[h], count, quarter);
    }
  }
}

void Join8(CpuLevel level, std::span<const uint8_t* const> planes, size_t n, uint8_t* out) {
  uint8_t even[4 * kRound];
  uint8_t odd[4 * kRound];
  uint8_t* const halves[2] = {even, odd};
  const uint8_t* const sources[2] = {even, odd};
  for (size_t i = 0; i < n; i += kRound) {
    const size_t count = std::min(kRound, n - i);
    for (size_t h = 0; h < 2; ++h) {
      const uint8_t* const quarter[4] = {planes[h] + i, planes[h + 2] + i, planes[h + 4] + i,
                                         planes[h + 6] + i};
      Join4(level, quarter, count, halves[h]);
    }
    Join2(level, sources, 4 * count, out + 8 * i);
  }
}

}  // namespace

void SplitPlanes(CpuLevel level, const uint8_t* elements, size_t num_elements,
                 std::span<uint8_t* const> planes) {
  if (num_elements == 0) return;
  switch (planes.size()) {
    case 1:
      std::memcpy(planes[0], elements, num_elements);
      return;
    case 2:
      return Split2(level, elements, num_elements, planes);
    case 4:
      return Split4(level, elements, num_elements, planes);
    default:
      return Split8(level, elements, num_elements, planes);
  }
}

void JoinPlanes(CpuLevel level, std::span<const uint8_t* const> planes, size_t num_elements,
                uint8_t* elements) {
  if (num_elements == 0) return;
  switch (planes.size()) {
    case 1:
      std::memcpy(elements, planes[0], num_elements);
      return;
    case 2:
      return Join2(level, planes, num_elements, elements);
    case 4:
      return Join4(level, planes, num_elements, elements);
    default:
      return Join8(level, planes, num_elements, elements);
  }
}

void JoinRotated([[maybe_unused]] CpuLevel level, std::span<const uint8_t* const> planes,
                 size_t num_elements, uint8_t* elements) {
  size_t done = 0;
#if VARVE_X86
  if (level != CpuLevel::kPortable) {
    done = planes.size() == 2 ? Join2Avx2<true>(planes[0], planes[1], num_elements, elements)
                              : Join4Avx2<true>(planes, num_elements, elements);
  }
#endif
  JoinRest(planes, done, num_elements, elements);
  if (planes.size() == 2) return RotateRight<uint16_t>(elements, done, num_elements);
  RotateRight<uint32_t>(elements, done, num_elements);
}

}  // namespace varve::internal
