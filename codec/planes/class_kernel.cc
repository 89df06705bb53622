// SPDX-License-Identifier: Apache-2.0
#include "codec/planes/class_kernel.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "codec/planes/compress_avx2.h"

namespace varve::internal {

namespace {

template <typename T>
void Extract(CpuLevel level, const ExponentField& field, const uint8_t* elements, size_t n,
             uint8_t* exponents) {
  RunAt(
      level,
      [](int shift, uint8_t mask, In from, size_t count, Out to) VARVE_INLINE {
        for (size_t i = 0; i < count; ++i) {
          T element;
          std::memcpy(&element, from + i * sizeof(T), sizeof(T));
          to[i] = static_cast<uint8_t>(static_cast<uint8_t>(element >> shift) & mask);
        }
      },
      field.shift, field.mask, elements, n, exponents);
}

#if VARVE_X86
// Extracts the fields of 16-bit elements, and returns how many. The compiler vectorises 32-bit
// elements as well by itself.
VARVE_AVX2 size_t Extract2Avx2(const ExponentField& field, const uint8_t* elements, size_t n,
                               uint8_t* exponents) {
  const __m128i shift = _mm_cvtsi32_si128(field.shift);
  const __m256i mask = _mm256_set1_epi16(field.mask);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const auto* const from = reinterpret_cast<const __m256i*>(elements + 2 * i);
    const __m256i a = _mm256_srl_epi16(_mm256_loadu_si256(from), shift);
    const __m256i b = _mm256_srl_epi16(_mm256_loadu_si256(from + 1), shift);
    const __m256i packed =
        _mm256_packus_epi16(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(exponents + i),
                        _mm256_permute4x64_epi64(packed, 0xD8));
  }
  return i;
}
#endif

#if VARVE_X86
// Calls kernel with the number, 1 to 8, as a constant.
template <typename Kernel>
size_t WithConstant(size_t number, const Kernel& kernel) {
  switch (number) {
    case 1:
      return kernel(std::integral_constant<size_t, 1>());
    case 2:
      return kernel(std::integral_constant<size_t, 2>());
    case 3:
      return kernel(std::integral_constant<size_t, 3>());
    case 4:
      return kernel(std::integral_constant<size_t, 4>());
    case 5:
      return kernel(std::integral_constant<size_t, 5>());
    case 6:
      return kernel(std::integral_constant<size_t, 6>());
    case 7:
      return kernel(std::integral_constant<size_t, 7>());
    case 8:
      return kernel(std::integral_constant<size_t, 8>());
    default:
      return 0;
  }
}
#endif

// below[t] counts the exponents below threshold t. The vector kernels do whole vectors and return
// how many elements that was.
using Below = std::array<size_t, kMaxClasses - 1>;

#if VARVE_X86
VARVE_AVX512 size_t ClassifyAvx512(std::span<const uint8_t> thresholds, uint8_t* exponents,
                                   size_t n, Below* below) {
  const __m512i one = _mm512_set1_epi8(1);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i bytes = _mm512_loadu_si512(exponents + i);
    __m512i classes = _mm512_setzero_si512();
    for (size_t t = 0; t < thresholds.size(); ++t) {
      const __m512i threshold = _mm512_set1_epi8(static_cast<char>(thresholds[t]));
      const __mmask64 mask = _mm512_cmplt_epu8_mask(bytes, threshold);
      classes = _mm512_mask_add_epi8(classes, mask, classes, one);
      (*below)[t] += static_cast<size_t>(_mm_popcnt_u64(mask));
    }
    _mm512_storeu_si512(exponents + i, classes);
  }
  return i;
}

// The number of thresholds is a constant here, so that they and the counters stay in registers.
template <size_t kThresholds>
VARVE_AVX2 size_t ClassifyAvx2(std::span<const uint8_t> thresholds, uint8_t* exponents, size_t n,
                               Below* below) {
  constexpr size_t kMaxTurns = 255;  // of counters of a byte
  __m256i threshold[kThresholds];
  for (size_t t = 0; t < kThresholds; ++t) {
    threshold[t] = _mm256_set1_epi8(static_cast<char>(thresholds[t]));
  }
  size_t i = 0;
  while (i + 32 <= n) {
    const size_t end = std::min(n / 32 * 32, i + 32 * kMaxTurns);
    const size_t elements = end - i;
    __m256i not_below[kThresholds] = {};
    for (; i < end; i += 32) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(exponents + i));
      __m256i classes = _mm256_set1_epi8(kThresholds);
#pragma GCC unroll 8
      for (size_t t = 0; t < kThresholds; ++t) {
        // An exponent e is not below t if max(e, t) == e. The comparison gives -1 where that holds.
        const __m256i mask = _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, threshold[t]), bytes);
        classes = _mm256_add_epi8(classes, mask);
        not_below[t] = _mm256_sub_epi8(not_below[t], mask);
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(exponents + i), classes);
    }
    for (size_t t = 0; t < kThresholds; ++t) {
      uint64_t sums[4];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums),
                          _mm256_sad_epu8(not_below[t], _mm256_setzero_si256()));
      (*below)[t] += elements - (sums[0] + sums[1] + sums[2] + sums[3]);
    }
  }
  return i;
}
#endif

void ClassifyRest(std::span<const uint8_t> thresholds, uint8_t* exponents, size_t begin, size_t n,
                  Below* below) {
  for (size_t i = begin; i < n; ++i) {
    const uint8_t exponent = exponents[i];
    uint8_t id = 0;
    for (size_t t = 0; t < thresholds.size(); ++t) {
      id = static_cast<uint8_t>(id + (exponent < thresholds[t]));
      (*below)[t] += exponent < thresholds[t];
    }
    exponents[i] = id;
  }
}

// The classes whose parts are moved, and the places of these parts.
template <typename Byte>
struct Parts {
  size_t count = 0;
  uint8_t ids[kMaxClasses] = {};
  Byte* at[kMaxClasses] = {};

  explicit Parts(std::span<Byte* const> parts) {
    for (size_t c = 0; c < parts.size(); ++c) {
      if (parts[c] == nullptr) continue;
      ids[count] = static_cast<uint8_t>(c);
      at[count++] = parts[c];
    }
  }
};

#if VARVE_X86
// The number of parts is a constant here, so that the pointers stay in registers.
template <size_t kParts>
VARVE_AVX512 size_t PartitionAvx512(const uint8_t* classes, const uint8_t* data, size_t n,
                                    Parts<uint8_t>* parts) {
  uint8_t* to[kParts];
  std::copy_n(parts->at, kParts, to);
  __m512i id[kParts];
  for (size_t k = 0; k < kParts; ++k) id[k] = _mm512_set1_epi8(static_cast<char>(parts->ids[k]));
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i ids = _mm512_loadu_si512(classes + i);
    const __m512i bytes = _mm512_loadu_si512(data + i);
#pragma GCC unroll 8
    for (size_t k = 0; k < kParts; ++k) {
      const __mmask64 mask = _mm512_cmpeq_epi8_mask(ids, id[k]);
      // Compressing to memory is many times slower than compressing to a register and storing all
      // of it.
      _mm512_storeu_si512(to[k], _mm512_maskz_compress_epi8(mask, bytes));
      to[k] += _mm_popcnt_u64(mask);
    }
  }
  std::copy_n(to, kParts, parts->at);
  return i;
}

template <size_t kParts>
VARVE_AVX512 size_t MergeAvx512(const uint8_t* classes, size_t n, Parts<const uint8_t>* parts,
                                uint8_t* data) {
  const uint8_t* from[kParts];
  std::copy_n(parts->at, kParts, from);
  __m512i id[kParts];
  for (size_t k = 0; k < kParts; ++k) id[k] = _mm512_set1_epi8(static_cast<char>(parts->ids[k]));
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i ids = _mm512_loadu_si512(classes + i);
    __m512i even = _mm512_setzero_si512();  // two sums, so that one need not wait for the other
    __m512i odd = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (size_t k = 0; k < kParts; ++k) {
      const __mmask64 mask = _mm512_cmpeq_epi8_mask(ids, id[k]);
      __m512i& sum = k % 2 == 0 ? even : odd;
      sum = _mm512_mask_expand_epi8(sum, mask, _mm512_loadu_si512(from[k]));
      from[k] += _mm_popcnt_u64(mask);
    }
    _mm512_storeu_si512(data + i, _mm512_or_si512(even, odd));
  }
  std::copy_n(from, kParts, parts->at);
  return i;
}

// Adds the bit of each class that has a byte other than zero.
VARVE_AVX2 size_t SeeValuesAvx2(const uint8_t* classes, const uint8_t* data, size_t n,
                                unsigned* seen) {
  static_assert(kMaxClasses <= 8);
  const __m256i bit_of_class = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  __m256i bits = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(classes + i));
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i));
    const __m256i zero = _mm256_cmpeq_epi8(bytes, _mm256_setzero_si256());
    bits = _mm256_or_si256(bits, _mm256_andnot_si256(zero, _mm256_shuffle_epi8(bit_of_class, ids)));
  }
  uint8_t all[32];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(all), bits);
  for (const uint8_t of_lane : all) *seen |= of_lane;
  return i;
}

template <size_t kParts>
VARVE_AVX2 size_t PartitionAvx2(const uint8_t* classes, const uint8_t* data, size_t n,
                                Parts<uint8_t>* parts) {
  uint8_t* to[kParts];
  std::copy_n(parts->at, kParts, to);
  __m256i id[kParts];
  for (size_t k = 0; k < kParts; ++k) id[k] = _mm256_set1_epi8(static_cast<char>(parts->ids[k]));
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(classes + i));
    const __m128i first = Load128(data + i);
    const __m128i second = Load128(data + i + 16);
#pragma GCC unroll 8
    for (size_t k = 0; k < kParts; ++k) {
      const __m256i equal = _mm256_cmpeq_epi8(ids, id[k]);
      const auto mask = static_cast<uint32_t>(_mm256_movemask_epi8(equal));
      Compress16(first, mask, to[k]);
      Compress16(second, mask >> 16, to[k] + CountBits(mask & 0xFFFF));
      to[k] += CountBits(mask);
    }
  }
  std::copy_n(to, kParts, parts->at);
  return i;
}

template <size_t kParts>
VARVE_AVX2 size_t MergeAvx2(const uint8_t* classes, size_t n, Parts<const uint8_t>* parts,
                            uint8_t* data) {
  const uint8_t* from[kParts];
  std::copy_n(parts->at, kParts, from);
  __m256i id[kParts];
  for (size_t k = 0; k < kParts; ++k) id[k] = _mm256_set1_epi8(static_cast<char>(parts->ids[k]));
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(classes + i));
    __m256i merged = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (size_t k = 0; k < kParts; ++k) {
      merged = _mm256_or_si256(merged, Expand32(_mm256_cmpeq_epi8(ids, id[k]), &from[k]));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(data + i), merged);
  }
  std::copy_n(from, kParts, parts->at);
  return i;
}

#endif

}  // namespace

void ExtractExponents(CpuLevel level, const ExponentField& field, const uint8_t* elements,
                      size_t num_elements, uint8_t* exponents) {
  if (field.element_bytes == 4) {
    return Extract<uint32_t>(level, field, elements, num_elements, exponents);
  }
  size_t i = 0;
#if VARVE_X86
  if (level != CpuLevel::kPortable) i = Extract2Avx2(field, elements, num_elements, exponents);
#endif
  Extract<uint16_t>(level, field, elements + 2 * i, num_elements - i, exponents + i);
}

void ClassifyExponents([[maybe_unused]] CpuLevel level, std::span<const uint8_t> thresholds,
                       uint8_t* exponents, size_t num_elements,
                       std::array<size_t, kMaxClasses>* counts) {
  Below below{};
  size_t i = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) i = ClassifyAvx512(thresholds, exponents, num_elements, &below);
  if (level == CpuLevel::kAvx2) {
    i = WithConstant(thresholds.size(), [&](auto t) {
      return ClassifyAvx2<t()>(thresholds, exponents, num_elements, &below);
    });
  }
#endif
  ClassifyRest(thresholds, exponents, i, num_elements, &below);
  // Thresholds fall, so exponents below one are below all before it.
  counts->fill(0);
  size_t left = num_elements;
  for (size_t t = 0; t < thresholds.size(); ++t) {
    (*counts)[t] = left - below[t];
    left = below[t];
  }
  (*counts)[thresholds.size()] = left;
}

void ClassifyElements(CpuLevel level, const ExponentField& field,
                      std::span<const uint8_t> thresholds, const uint8_t* elements,
                      size_t num_elements, uint8_t* classes,
                      std::array<size_t, kMaxClasses>* counts) {
  constexpr size_t kRound = 4096;  // exponents stay in the L1 cache
  counts->fill(0);
  for (size_t i = 0; i < num_elements; i += kRound) {
    const size_t count = std::min(kRound, num_elements - i);
    std::array<size_t, kMaxClasses> of_round;
    ExtractExponents(level, field, elements + i * field.element_bytes, count, classes + i);
    ClassifyExponents(level, thresholds, classes + i, count, &of_round);
    for (size_t c = 0; c < kMaxClasses; ++c) (*counts)[c] += of_round[c];
  }
}

unsigned ClassesWithValues([[maybe_unused]] CpuLevel level, const uint8_t* classes,
                           const uint8_t* data, size_t num_elements) {
  unsigned seen = 0;
  size_t i = 0;
#if VARVE_X86
  if (level != CpuLevel::kPortable) i = SeeValuesAvx2(classes, data, num_elements, &seen);
#endif
  for (; i < num_elements; ++i) seen |= (data[i] != 0 ? 1u : 0u) << classes[i];
  return seen;
}

void PartitionByClass([[maybe_unused]] CpuLevel level, const uint8_t* classes, const uint8_t* data,
                      size_t num_elements, std::span<uint8_t* const> parts) {
  Parts<uint8_t> moved(parts);
  size_t i = 0;
#if VARVE_X86
  if (level != CpuLevel::kPortable) {
    i = WithConstant(moved.count, [&](auto n) {
      return level == CpuLevel::kAvx512 ? PartitionAvx512<n()>(classes, data, num_elements, &moved)
                                        : PartitionAvx2<n()>(classes, data, num_elements, &moved);
    });
  }
#endif
  uint8_t* to[kMaxClasses] = {};
  for (size_t k = 0; k < moved.count; ++k) to[moved.ids[k]] = moved.at[k];
  for (; i < num_elements; ++i) {
    uint8_t*& at = to[classes[i]];
    if (at != nullptr) *at++ = data[i];
  }
}

void MergeByClass([[maybe_unused]] CpuLevel level, const uint8_t* classes,
                  std::span<const uint8_t* const> parts, size_t num_elements, uint8_t* data) {
  Parts<const uint8_t> moved(parts);
  size_t i = 0;
#if VARVE_X86
  if (level != CpuLevel::kPortable) {
    i = WithConstant(moved.count, [&](auto n) {
      return level == CpuLevel::kAvx512 ? MergeAvx512<n()>(classes, num_elements, &moved, data)
                                        : MergeAvx2<n()>(classes, num_elements, &moved, data);
    });
  }
#endif
  const uint8_t* from[kMaxClasses] = {};
  for (size_t k = 0; k < moved.count; ++k) from[moved.ids[k]] = moved.at[k];
  for (; i < num_elements; ++i) {
    const uint8_t*& at = from[classes[i]];
    data[i] = at != nullptr ? *at++ : uint8_t{0};
  }
}

}  // namespace varve::internal
