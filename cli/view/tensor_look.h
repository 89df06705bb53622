// SPDX-License-Identifier: Apache-2.0
//
// What the values of a tensor look like: how they are spread, their norm, and a picture in which
// each cell is the mean of its neighbours. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "varve/tensor.h"

namespace varve::internal::cli {

inline constexpr size_t kHistogramBins = 64;
inline constexpr uint64_t kMaxHeatRows = 64;
inline constexpr uint64_t kMaxHeatColumns = 128;

// Infinite values and NaN are counted, and otherwise left out.
struct TensorLook {
  uint64_t num_elements = 0;
  uint64_t num_zeros = 0;
  uint64_t num_infinite = 0;
  uint64_t num_nans = 0;
  double norm = 0;  // Euclidean
  double low = 0;   // the ends of the histogram: the smallest and the largest value
  double high = 0;
  std::vector<uint64_t> histogram;  // bins of equal width. Empty without a finite value

  // The last axis lies across, all others down. Cells are in rows. NaN: a cell without a finite
  // value.
  uint64_t heat_rows = 0;
  uint64_t heat_columns = 0;
  std::vector<double> heat;
};

// `bytes` are all elements, row-major. Precondition: they fit the shape, and the dtype is not
// complex.
TensorLook LookAt(DType dtype, std::span<const int64_t> shape, std::span<const std::byte> bytes);

}  // namespace varve::internal::cli
