// SPDX-License-Identifier: Apache-2.0
//
// Runs of a target's elements, short enough for memory that holds several. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "varve/training_state.h"

namespace varve {

struct Piece {
  ShardLayout region;
  int64_t first = 0;
  int64_t count = 0;
};

// All of a tensor in order, in pieces of at most 16 MiB, of whole chunks; a tensor of elements that
// are no whole bytes is one piece, as regions must end on whole bytes.
std::vector<Piece> CutTarget(const StateTensor& tensor);

inline size_t BytesOf(DType dtype, int64_t elements) {
  return static_cast<size_t>(elements) * static_cast<size_t>(DTypeBits(dtype)) / 8;
}

}  // namespace varve
