// SPDX-License-Identifier: Apache-2.0
#include "codec/class_kernel.h"

#include <algorithm>
#include <cstring>

#if VARVE_X86
#include <immintrin.h>
#endif

namespace varve {
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

// below[t] counts the exponents below threshold t; the vector kernels do whole vectors and return
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

VARVE_AVX2 size_t ClassifyAvx2(std::span<const uint8_t> thresholds, uint8_t* exponents, size_t n,
                               Below* below) {
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(exponents + i));
    __m256i classes = _mm256_setzero_si256();
    for (size_t t = 0; t < thresholds.size(); ++t) {
      const __m256i threshold = _mm256_set1_epi8(static_cast<char>(thresholds[t]));
      // Not below is max(e, t) == e; the comparison is -1 where it holds.
      const __m256i not_below = _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, threshold), bytes);
      classes = _mm256_add_epi8(classes, _mm256_add_epi8(_mm256_set1_epi8(1), not_below));
      const uint32_t mask = ~static_cast<uint32_t>(_mm256_movemask_epi8(not_below));
      (*below)[t] += static_cast<size_t>(_mm_popcnt_u32(mask));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(exponents + i), classes);
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

#if VARVE_X86
// The number of parts is a constant here, so that the pointers stay in registers.
template <size_t kParts>
VARVE_AVX512 size_t PartitionAvx512(const uint8_t* classes, const uint8_t* data, size_t n,
                                    uint8_t** parts) {
  uint8_t* to[kParts];
  std::copy_n(parts, kParts, to);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i ids = _mm512_loadu_si512(classes + i);
    const __m512i bytes = _mm512_loadu_si512(data + i);
#pragma GCC unroll 8
    for (size_t c = 0; c < kParts; ++c) {
      const __mmask64 mask = _mm512_cmpeq_epi8_mask(ids, _mm512_set1_epi8(static_cast<char>(c)));
      // A compress to memory is many times slower than one to a register with a whole store.
      _mm512_storeu_si512(to[c], _mm512_maskz_compress_epi8(mask, bytes));
      to[c] += _mm_popcnt_u64(mask);
    }
  }
  std::copy_n(to, kParts, parts);
  return i;
}

template <size_t kParts>
VARVE_AVX512 size_t MergeAvx512(const uint8_t* classes, size_t n, const uint8_t** parts,
                                uint8_t* data) {
  const uint8_t* from[kParts];
  std::copy_n(parts, kParts, from);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i ids = _mm512_loadu_si512(classes + i);
    __m512i even = _mm512_setzero_si512();  // two sums, so that one need not wait for the other
    __m512i odd = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (size_t c = 0; c < kParts; ++c) {
      const __mmask64 mask = _mm512_cmpeq_epi8_mask(ids, _mm512_set1_epi8(static_cast<char>(c)));
      __m512i& sum = c % 2 == 0 ? even : odd;
      sum = _mm512_mask_expand_epi8(sum, mask, _mm512_loadu_si512(from[c]));
      from[c] += _mm_popcnt_u64(mask);
    }
    _mm512_storeu_si512(data + i, _mm512_or_si512(even, odd));
  }
  std::copy_n(from, kParts, parts);
  return i;
}

size_t PartitionAvx512(const uint8_t* classes, const uint8_t* data, size_t n, uint8_t** parts,
                       size_t num_parts) {
  switch (num_parts) {
    case 2:
      return PartitionAvx512<2>(classes, data, n, parts);
    case 3:
      return PartitionAvx512<3>(classes, data, n, parts);
    case 4:
      return PartitionAvx512<4>(classes, data, n, parts);
    case 5:
      return PartitionAvx512<5>(classes, data, n, parts);
    case 6:
      return PartitionAvx512<6>(classes, data, n, parts);
    case 7:
      return PartitionAvx512<7>(classes, data, n, parts);
    case 8:
      return PartitionAvx512<8>(classes, data, n, parts);
    default:
      return 0;
  }
}

size_t MergeAvx512(const uint8_t* classes, size_t n, const uint8_t** parts, size_t num_parts,
                   uint8_t* data) {
  switch (num_parts) {
    case 2:
      return MergeAvx512<2>(classes, n, parts, data);
    case 3:
      return MergeAvx512<3>(classes, n, parts, data);
    case 4:
      return MergeAvx512<4>(classes, n, parts, data);
    case 5:
      return MergeAvx512<5>(classes, n, parts, data);
    case 6:
      return MergeAvx512<6>(classes, n, parts, data);
    case 7:
      return MergeAvx512<7>(classes, n, parts, data);
    case 8:
      return MergeAvx512<8>(classes, n, parts, data);
    default:
      return 0;
  }
}
#endif

}  // namespace

void ExtractExponents(CpuLevel level, const ExponentField& field, const uint8_t* elements,
                      size_t num_elements, uint8_t* exponents) {
  if (field.element_bytes == 2) {
    return Extract<uint16_t>(level, field, elements, num_elements, exponents);
  }
  return Extract<uint32_t>(level, field, elements, num_elements, exponents);
}

void ClassifyExponents([[maybe_unused]] CpuLevel level, std::span<const uint8_t> thresholds,
                       uint8_t* exponents, size_t num_elements,
                       std::array<size_t, kMaxClasses>* counts) {
  Below below{};
  size_t i = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) i = ClassifyAvx512(thresholds, exponents, num_elements, &below);
  if (level == CpuLevel::kAvx2) i = ClassifyAvx2(thresholds, exponents, num_elements, &below);
#endif
  ClassifyRest(thresholds, exponents, i, num_elements, &below);
  // Thresholds fall, so those below one are below all before it.
  counts->fill(0);
  size_t left = num_elements;
  for (size_t t = 0; t < thresholds.size(); ++t) {
    (*counts)[t] = left - below[t];
    left = below[t];
  }
  (*counts)[thresholds.size()] = left;
}

void PartitionByClass([[maybe_unused]] CpuLevel level, const uint8_t* classes, const uint8_t* data,
                      size_t num_elements, std::span<uint8_t* const> parts) {
  uint8_t* to[kMaxClasses] = {};
  for (size_t c = 0; c < parts.size(); ++c) to[c] = parts[c];
  size_t i = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) {
    i = PartitionAvx512(classes, data, num_elements, to, parts.size());
  }
#endif
  for (; i < num_elements; ++i) *to[classes[i]]++ = data[i];
}

void MergeByClass([[maybe_unused]] CpuLevel level, const uint8_t* classes,
                  std::span<const uint8_t* const> parts, size_t num_elements, uint8_t* data) {
  const uint8_t* from[kMaxClasses] = {};
  for (size_t c = 0; c < parts.size(); ++c) from[c] = parts[c];
  size_t i = 0;
#if VARVE_X86
  if (level == CpuLevel::kAvx512) {
    i = MergeAvx512(classes, num_elements, from, parts.size(), data);
  }
#endif
  for (; i < num_elements; ++i) data[i] = *from[classes[i]]++;
}

}  // namespace varve
