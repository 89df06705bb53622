// SPDX-License-Identifier: Apache-2.0
#include "codec/class_kernel.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

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

// The byte masks of 32 elements of a class, 8 elements a word, with the number of elements of the
// class in the first 0, 1, 2, 3 and all words.
struct ClassMasks {
  alignas(32) uint64_t words[4];
  size_t before[5];
};
VARVE_AVX2 VARVE_INLINE inline ClassMasks MasksOf(__m256i ids, size_t c) {
  const __m256i equal = _mm256_cmpeq_epi8(ids, _mm256_set1_epi8(static_cast<char>(c)));
  const auto bits = static_cast<uint32_t>(_mm256_movemask_epi8(equal));
  ClassMasks masks;
  _mm256_store_si256(reinterpret_cast<__m256i*>(masks.words), equal);
  masks.before[0] = 0;
  for (size_t w = 1; w < 4; ++w) {
    masks.before[w] = static_cast<size_t>(_mm_popcnt_u32(bits & ((1u << (8 * w)) - 1)));
  }
  masks.before[4] = static_cast<size_t>(_mm_popcnt_u32(bits));
  return masks;
}

template <size_t kParts>
VARVE_AVX2 size_t PartitionAvx2(const uint8_t* classes, const uint8_t* data, size_t n,
                                uint8_t** parts) {
  uint8_t* to[kParts];
  std::copy_n(parts, kParts, to);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(classes + i));
    uint64_t bytes[4];
    std::memcpy(bytes, data + i, sizeof(bytes));
#pragma GCC unroll 8
    for (size_t c = 0; c < kParts; ++c) {
      const ClassMasks masks = MasksOf(ids, c);
#pragma GCC unroll 4
      for (size_t w = 0; w < 4; ++w) {
        const uint64_t packed = _pext_u64(bytes[w], masks.words[w]);
        std::memcpy(to[c] + masks.before[w], &packed, sizeof(packed));
      }
      to[c] += masks.before[4];
    }
  }
  std::copy_n(to, kParts, parts);
  return i;
}

template <size_t kParts>
VARVE_AVX2 size_t MergeAvx2(const uint8_t* classes, size_t n, const uint8_t** parts,
                            uint8_t* data) {
  const uint8_t* from[kParts];
  std::copy_n(parts, kParts, from);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(classes + i));
    uint64_t bytes[4] = {};
#pragma GCC unroll 8
    for (size_t c = 0; c < kParts; ++c) {
      const ClassMasks masks = MasksOf(ids, c);
#pragma GCC unroll 4
      for (size_t w = 0; w < 4; ++w) {
        uint64_t packed;
        std::memcpy(&packed, from[c] + masks.before[w], sizeof(packed));
        bytes[w] |= _pdep_u64(packed, masks.words[w]);
      }
      from[c] += masks.before[4];
    }
    std::memcpy(data + i, bytes, sizeof(bytes));
  }
  std::copy_n(from, kParts, parts);
  return i;
}

// Calls kernel with the number of parts as a constant.
template <typename Kernel>
size_t WithParts(size_t num_parts, const Kernel& kernel) {
  switch (num_parts) {
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
  if (level != CpuLevel::kPortable) {
    i = WithParts(parts.size(), [&](auto n) {
      return level == CpuLevel::kAvx512 ? PartitionAvx512<n()>(classes, data, num_elements, to)
                                        : PartitionAvx2<n()>(classes, data, num_elements, to);
    });
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
  if (level != CpuLevel::kPortable) {
    i = WithParts(parts.size(), [&](auto n) {
      return level == CpuLevel::kAvx512 ? MergeAvx512<n()>(classes, num_elements, from, data)
                                        : MergeAvx2<n()>(classes, num_elements, from, data);
    });
  }
#endif
  for (; i < num_elements; ++i) data[i] = *from[classes[i]]++;
}

}  // namespace varve
