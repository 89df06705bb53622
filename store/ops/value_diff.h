// SPDX-License-Identifier: Apache-2.0
//
// How the elements of two tensors differ, piece by piece. Pure functions.
#pragma once

#include <cstddef>
#include <span>

#include "varve/history.h"
#include "varve/tensor.h"

namespace varve::internal {

// The share of one piece in a ValueDiff.
struct PartialDiff {
  uint64_t changed_elements = 0;
  double max_abs = 0;
  double squares_of_difference = 0;
  double squares_before = 0;
  uint64_t new_nans = 0;
};

// Precondition: both have the same number of bytes, and elements are whole bytes.
PartialDiff CompareElements(DType dtype, std::span<const std::byte> before,
                            std::span<const std::byte> after);

// `parts` must be in the order of the tensor, so that the sum is always the same.
ValueDiff Sum(uint64_t num_elements, std::span<const PartialDiff> parts);

}  // namespace varve::internal
