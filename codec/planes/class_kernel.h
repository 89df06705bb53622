// SPDX-License-Identifier: Apache-2.0
//
// Context of a delta: elements whose base has a similar exponent change by a similar number of
// units in the last place, so each class of exponents is coded on its own. A class is a range of
// exponents; class 0 has the highest. Every level gives the same bytes. Functions are stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"

namespace varve {

inline constexpr size_t kMaxClasses = 8;
// Partition and merge touch this many bytes past the end of every class.
inline constexpr size_t kClassSlack = 64;

// Where the exponent byte of an element is: its bits from `shift` up, without the sign.
struct ExponentField {
  size_t element_bytes = 2;
  int shift = 7;
  uint8_t mask = 0xFF;
};

void ExtractExponents(CpuLevel level, const ExponentField& field, const uint8_t* elements,
                      size_t num_elements, uint8_t* exponents);

// Replaces each exponent by its class: the number of `thresholds` that it is below. `counts` gets
// the elements of each class. At most kMaxClasses - 1 thresholds, each below the one before.
void ClassifyExponents(CpuLevel level, std::span<const uint8_t> thresholds, uint8_t* exponents,
                       size_t num_elements, std::array<size_t, kMaxClasses>* counts);

// Both in one go: the class of every element.
void ClassifyElements(CpuLevel level, const ExponentField& field,
                      std::span<const uint8_t> thresholds, const uint8_t* elements,
                      size_t num_elements, uint8_t* classes,
                      std::array<size_t, kMaxClasses>* counts);

// Bit c is set when an element of class c has another byte than zero.
unsigned ClassesWithValues(CpuLevel level, const uint8_t* classes, const uint8_t* data,
                           size_t num_elements);

// Moves each byte of `data` to the end of its class, in order, and back. classes[i] is below
// parts.size(); every part has room for its count and kClassSlack. A null part is left out, and
// stands for zeros when parts are merged.
void PartitionByClass(CpuLevel level, const uint8_t* classes, const uint8_t* data,
                      size_t num_elements, std::span<uint8_t* const> parts);
void MergeByClass(CpuLevel level, const uint8_t* classes, std::span<const uint8_t* const> parts,
                  size_t num_elements, uint8_t* data);

}  // namespace varve
