// SPDX-License-Identifier: Apache-2.0
//
// Cuts a tensor into slices that follow each other in row-major order. Stateless.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "varve/tensor.h"

namespace varve {

// A slice that is also a run of elements.
struct Piece {
  std::vector<Range> box;  // one range an axis
  int64_t first = 0;
  int64_t count = 0;
};

// Pieces of at most `max_elements` (at least 1) that together are the tensor, in order; none when
// it has no elements. Precondition: the shape has a number of elements (NumElements).
std::vector<Piece> CutIntoPieces(std::span<const int64_t> shape, int64_t max_elements);

}  // namespace varve
