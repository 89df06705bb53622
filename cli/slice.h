// SPDX-License-Identifier: Apache-2.0
//
// Slices as NumPy writes them: "0:10,:,-3:". A bare integer takes one index and drops the axis.
// Axes that are not named are taken whole. There are no steps. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal::cli {

// A slice applied to a shape.
struct Slice {
  std::vector<Range> ranges;   // one an axis, within the shape
  std::vector<int64_t> shape;  // of the result, without the axes that an integer took
};

// kInvalidArgument says which part is wrong. As in NumPy, a range is cut to the axis (and may be
// empty), but an integer must lie within it. An empty text takes everything.
Result<Slice> ParseSlice(std::string_view text, std::span<const int64_t> shape);

// Cuts the box of `ranges` into boxes of at most `max_bytes` (at least one element), in row-major
// order, so that a large tensor can be read piece by piece. `shape` is the tensor's. Boxes of types
// smaller than a byte start and end on whole bytes. Where rows do not, the pieces are larger than
// asked.
std::vector<std::vector<Range>> SplitIntoPieces(DType dtype, std::span<const Range> ranges,
                                                uint64_t max_bytes);

// Returns the number of elements in a box.
int64_t NumElementsOf(std::span<const Range> ranges);

}  // namespace varve::internal::cli
