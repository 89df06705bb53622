// SPDX-License-Identifier: Apache-2.0
//
// Cuts of an axis into one part a rank.
#include <algorithm>
#include <utility>

#include "trainer_hooks/layouts/axis.h"

namespace varve {
using namespace internal;

namespace {

std::string AxisText(size_t axis, int64_t size) {
  return "axis " + std::to_string(axis) + " of " + std::to_string(size) + " indices";
}

// Returns indices [begin, begin + length) of an axis of `size` indices with padding behind.
std::vector<Segment> PaddedPieces(int64_t begin, int64_t length, int64_t size) {
  const int64_t held = std::clamp<int64_t>(size - begin, 0, length);
  return {{begin, held}, {.length = length - held, .is_padding = true}};
}

}  // namespace

Result<int64_t> PadTo(int64_t size, int64_t multiple) {
  const std::string what =
      std::to_string(size) + " padded to a multiple of " + std::to_string(multiple);
  if (size < 0 || multiple < 1) {
    return Status::InvalidArgument(what + ", expected a size of at least 0 and a multiple of 1");
  }
  const int64_t missing = (multiple - size % multiple) % multiple;
  if (missing > INT64_MAX - size) return Status::InvalidArgument(what + " overflows int64");
  return size + missing;
}

Result<ShardLayout> SplitEvenly(ShardLayout layout, size_t axis, RankOf tp) {
  VARVE_RETURN_IF_ERROR(ValidateSplit(layout, axis, tp));
  const int64_t size = layout.ProductShape()[axis];
  VARVE_RETURN_IF_ERROR(ExpectMultiple(AxisText(axis, size), size, tp));
  const int64_t part = size / tp.ranks;
  return Take(std::move(layout), axis, {{tp.rank * part, part}});
}

Result<ShardLayout> SplitPadded(ShardLayout layout, size_t axis, int64_t padded_size, RankOf tp) {
  VARVE_RETURN_IF_ERROR(ValidateSplit(layout, axis, tp));
  const int64_t size = layout.ProductShape()[axis];
  const std::string what = AxisText(axis, size) + " padded to " + std::to_string(padded_size);
  if (padded_size < size) return Status::InvalidArgument(what + ", expected at least its size");
  VARVE_RETURN_IF_ERROR(ExpectMultiple(what, padded_size, tp));
  const int64_t part = padded_size / tp.ranks;
  return Take(std::move(layout), axis, PaddedPieces(tp.rank * part, part, size));
}

Result<ShardLayout> SplitChunks(ShardLayout layout, size_t axis, RankOf group) {
  VARVE_RETURN_IF_ERROR(ValidateSplit(layout, axis, group));
  const int64_t size = layout.ProductShape()[axis];
  const int64_t chunk = size / group.ranks + (size % group.ranks == 0 ? 0 : 1);
  // It does not use rank * chunk, which may overflow when there are more ranks than indices.
  const int64_t begin = chunk == 0 || group.rank > size / chunk ? size : group.rank * chunk;
  return Take(std::move(layout), axis, {{begin, std::min(chunk, size - begin)}});
}

Result<ShardLayout> TakeIndices(ShardLayout layout, size_t axis, Range indices) {
  VARVE_RETURN_IF_ERROR(ValidateSplit(layout, axis, {}));
  const int64_t size = layout.ProductShape()[axis];
  if (indices.begin < 0 || indices.end < indices.begin || indices.end > size) {
    return Status::InvalidArgument("indices " + std::to_string(indices.begin) + ":" +
                                   std::to_string(indices.end) + " of " + AxisText(axis, size));
  }
  return Take(std::move(layout), axis, {{indices.begin, indices.end - indices.begin}});
}

Result<ShardLayout> SplitFused(ShardLayout layout, size_t axis, std::span<const int64_t> part_sizes,
                               RankOf tp) {
  VARVE_RETURN_IF_ERROR(ValidateSplit(layout, axis, tp));
  const int64_t size = layout.ProductShape()[axis];
  std::vector<Segment> pieces;
  int64_t begin = 0;
  for (const int64_t part_size : part_sizes) {
    const std::string what =
        "a part of " + std::to_string(part_size) + " on " + AxisText(axis, size);
    if (part_size < 0 || part_size > size - begin) {
      return Status::InvalidArgument(what + ", which has " + std::to_string(size - begin) +
                                     " left for it");
    }
    VARVE_RETURN_IF_ERROR(ExpectMultiple(what, part_size, tp));
    const int64_t part = part_size / tp.ranks;
    pieces.push_back({begin + tp.rank * part, part});
    begin += part_size;
  }
  if (begin != size) {
    return Status::InvalidArgument("parts of " + std::to_string(begin) + " indices together on " +
                                   AxisText(axis, size));
  }
  return Take(std::move(layout), axis, pieces);
}

}  // namespace varve
