// SPDX-License-Identifier: Apache-2.0
#include "codec/class_kernel.h"

#include <algorithm>
#include <cstring>

#if VARVE_X86
#include <immintrin.h>
#endif

namespace varve {
namespace {

// Bytes per round, so that the passes over the thresholds stay in the L1 cache.
constexpr size_t kRound = 4096;

template <typename T>
void Extract(CpuLevel level, const ExponentField& field, const uint8_t* elements, size_t n,
             uint8_t* exponents) {
  RunAt(level, [](int shift, uint8_t mask, In from, size_t count, Out to) VARVE_INLINE {
    for (size_t i = 0; i < count; ++i) {
      T element;
      std::memcpy(&element, from + i * sizeof(T), sizeof(T));
      to[i] = static_cast<uint8_t>(static_cast<uint8_t>(element >> shift) & mask);
    }
  }, field.shift, field.mask, elements, n, exponents);
}

void ClassifyRound(CpuLevel level, std::span<const uint8_t> thresholds, uint8_t* exponents,
                   size_t n) {
  uint8_t classes[kRound];
  std::memset(classes, 0, n);
  for (const uint8_t threshold : thresholds) {
    RunAt(level, [](uint8_t below, In from, size_t count, Out to) VARVE_INLINE {
      for (size_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(to[i] + (from[i] < below));
    }, threshold, exponents, n, classes);
  }
  std::memcpy(exponents, classes, n);
}

// Elements of one class in a round; counted in 32 bits, where the compiler can use vectors.
size_t CountClass(CpuLevel level, const uint8_t* classes, size_t n, uint8_t wanted) {
  uint32_t sum = 0;
  RunAt(level, [](In from, size_t count, uint8_t id, uint32_t* to) VARVE_INLINE {
    uint32_t found = 0;
    for (size_t i = 0; i < count; ++i) found += from[i] == id;
    *to = found;
  }, classes, n, wanted, &sum);
  return sum;
}

#if VARVE_X86
VARVE_AVX512 size_t PartitionAvx512(const uint8_t* classes, const uint8_t* data, size_t n,
                                    uint8_t** to, size_t num_parts) {
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i ids = _mm512_loadu_si512(classes + i);
    const __m512i bytes = _mm512_loadu_si512(data + i);
    for (size_t c = 0; c < num_parts; ++c) {
      const __mmask64 mask = _mm512_cmpeq_epi8_mask(ids, _mm512_set1_epi8(static_cast<char>(c)));
      // A compress to memory is many times slower than one to a register with a whole store.
      _mm512_storeu_si512(to[c], _mm512_maskz_compress_epi8(mask, bytes));
      to[c] += _mm_popcnt_u64(mask);
    }
  }
  return i;
}

VARVE_AVX512 size_t MergeAvx512(const uint8_t* classes, size_t n, const uint8_t** from,
                                size_t num_parts, uint8_t* data) {
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i ids = _mm512_loadu_si512(classes + i);
    __m512i bytes = _mm512_setzero_si512();
    for (size_t c = 0; c < num_parts; ++c) {
      const __mmask64 mask = _mm512_cmpeq_epi8_mask(ids, _mm512_set1_epi8(static_cast<char>(c)));
      bytes = _mm512_mask_expand_epi8(bytes, mask, _mm512_loadu_si512(from[c]));
      from[c] += _mm_popcnt_u64(mask);
    }
    _mm512_storeu_si512(data + i, bytes);
  }
  return i;
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

void ClassifyExponents(CpuLevel level, std::span<const uint8_t> thresholds, uint8_t* exponents,
                       size_t num_elements, std::array<size_t, kMaxClasses>* counts) {
  counts->fill(0);
  for (size_t i = 0; i < num_elements; i += kRound) {
    const size_t n = std::min(kRound, num_elements - i);
    ClassifyRound(level, thresholds, exponents + i, n);
    for (size_t c = 0; c <= thresholds.size(); ++c) {
      (*counts)[c] += CountClass(level, exponents + i, n, static_cast<uint8_t>(c));
    }
  }
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
