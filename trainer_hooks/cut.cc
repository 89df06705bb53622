// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/cut.h"

#include <algorithm>

namespace varve {
namespace {

// The box of a piece: one index of each axis before `axis`, a range of that, and all of the others.
std::vector<Range> MakeBox(std::span<const int64_t> shape, size_t axis, int64_t outer,
                           Range range) {
  std::vector<Range> box;
  for (const int64_t size : shape) box.push_back({0, size});
  box[axis] = range;
  for (size_t i = axis; i-- > 0; outer /= shape[i]) {
    const int64_t index = outer % shape[i];
    box[i] = {index, index + 1};
  }
  return box;
}

}  // namespace

std::vector<Piece> CutIntoPieces(std::span<const int64_t> shape, int64_t max_elements) {
  if (shape.empty()) return {{.box = {}, .first = 0, .count = 1}};
  const int64_t elements = NumElements(shape).value();
  if (elements == 0) return {};
  // The first axis of which one index is small enough.
  size_t axis = 0;
  int64_t inner = elements / shape[0];
  while (inner > max_elements) inner /= shape[++axis];
  const int64_t step = std::min(shape[axis], max_elements / inner);
  std::vector<Piece> pieces;
  for (int64_t outer = 0; outer < elements / (inner * shape[axis]); ++outer) {
    for (int64_t begin = 0; begin < shape[axis]; begin += step) {
      const int64_t end = std::min(begin + step, shape[axis]);
      pieces.push_back({.box = MakeBox(shape, axis, outer, {begin, end}),
                        .first = (outer * shape[axis] + begin) * inner,
                        .count = (end - begin) * inner});
    }
  }
  return pieces;
}

}  // namespace varve
