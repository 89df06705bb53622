// SPDX-License-Identifier: Apache-2.0
//
// The context of a delta. Elements whose base has a similar exponent change by a similar number of
// units in the last place, so each class of exponents is coded on its own. A class is a range of
// exponents, and class 0 has the highest. Every level gives the same bytes. Functions are
// stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"

namespace varve::internal {

inline constexpr size_t kMaxClasses = 8;
// Partition and merge may read or write this many bytes past the end of every class.
inline constexpr size_t kClassSlack = 64;

// Where the exponent byte of an element lies: the bits from `shift` up, without the sign.
struct ExponentField {
  size_t element_bytes = 2;
  int shift = 7;
  uint8_t mask = 0xFF;
};

void ExtractExponents(CpuLevel level, const ExponentField& field, const uint8_t* elements,
                      size_t num_elements, uint8_t* exponents);

// Replaces each exponent by its class, which is the number of `thresholds` that it is below.
// `counts` gets the number of elements of each class. There are at most kMaxClasses - 1 thresholds,
// each below the one before.
void ClassifyExponents(CpuLevel level, std::span<const uint8_t> thresholds, uint8_t* exponents,
                       size_t num_elements, std::array<size_t, kMaxClasses>* counts);

// Takes the exponent of every element and finds its class, in one pass.
void ClassifyElements(CpuLevel level, const ExponentField& field,
                      std::span<const uint8_t> thresholds, const uint8_t* elements,
                      size_t num_elements, uint8_t* classes,
                      std::array<size_t, kMaxClasses>* counts);

// Sets bit c of the result when an element of class c has a byte other than zero.
unsigned ClassesWithValues(CpuLevel level, const uint8_t* classes, const uint8_t* data,
                           size_t num_elements);

// The first moves each byte of `data` to the end of its class, in order. The second moves them
// back. classes[i] is below parts.size(). Every part has room for its count and kClassSlack more. A
// null part is left out, and stands for zeros when parts are merged.
void PartitionByClass(CpuLevel level, const uint8_t* classes, const uint8_t* data,
                      size_t num_elements, std::span<uint8_t* const> parts);
void MergeByClass(CpuLevel level, const uint8_t* classes, std::span<const uint8_t* const> parts,
                  size_t num_elements, uint8_t* data);

}  // namespace varve::internal
