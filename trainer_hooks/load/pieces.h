// SPDX-License-Identifier: Apache-2.0
//
// Pieces of a target's elements, short enough that memory for reading holds several. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "varve/training_state.h"

namespace varve::internal {

struct Piece {
  ShardLayout region;
  int64_t first = 0;
  int64_t count = 0;
};

// Cuts a tensor into consecutive pieces of at most 16 MiB, of whole chunks. A tensor whose elements
// are not whole bytes is one piece, because regions must end on whole bytes.
std::vector<Piece> CutTarget(const StateTensor& tensor);

}  // namespace varve::internal
