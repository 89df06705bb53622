// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/load/pieces.h"

#include <algorithm>

#include "store/shards/regions.h"
#include "trainer_hooks/load/load_plan.h"

namespace varve::internal {

namespace {

// An element has up to 8 bytes. Several pieces fit into the scratch memory, so that all cores have
// one to convert.
constexpr int64_t kPieceElements = int64_t{2} << 20;

}  // namespace

std::vector<Piece> CutTarget(const StateTensor& tensor) {
  const ShardLayout layout = LayoutOf(tensor);
  const int64_t elements = layout.NumLocal();
  const int64_t step = DTypeBits(tensor.dtype) % 8 == 0 ? kPieceElements : elements;
  const int64_t begin = layout.flat ? layout.flat->begin : 0;
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < elements; first += step) {
    pieces.push_back({layout, first, std::min(step, elements - first)});
    pieces.back().region.flat = Range{begin + first, begin + first + pieces.back().count};
  }
  return pieces;
}

}  // namespace varve::internal
