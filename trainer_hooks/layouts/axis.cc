// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/layouts/axis.h"

#include <algorithm>
#include <utility>

namespace varve::internal {

namespace {

// Appends the local range [begin, begin + length) of `segments`.
void AppendRange(const std::vector<Segment>& segments, const Segment& range,
                 std::vector<Segment>* out) {
  const int64_t end = range.begin + range.length;
  int64_t local = 0;
  for (const Segment& segment : segments) {
    const int64_t from = std::max(range.begin, local);
    const int64_t to = std::min(end, local + segment.length);
    if (from < to) {
      const int64_t begin = segment.is_padding ? 0 : segment.begin + (from - local);
      out->push_back({begin, to - from, segment.is_padding});
    }
    local += segment.length;
  }
}

}  // namespace

Status ValidateRank(RankOf group) {
  if (group.rank >= 0 && group.rank < group.ranks) return Status::Ok();
  return Status::InvalidArgument("rank " + std::to_string(group.rank) + " of " +
                                 std::to_string(group.ranks) + ", expected 0 <= rank < ranks");
}

Status ValidateUncut(const ShardLayout& layout) {
  VARVE_RETURN_IF_ERROR(ValidateLayout(layout));
  if (!layout.flat.has_value()) return Status::Ok();
  return Status::InvalidArgument("the layout " + ToString(layout) +
                                 " has a flat range, expected one without");
}

Status ValidateSplit(const ShardLayout& layout, size_t axis, RankOf group) {
  VARVE_RETURN_IF_ERROR(ValidateRank(group));
  VARVE_RETURN_IF_ERROR(ValidateUncut(layout));
  if (axis < layout.axes.size()) return Status::Ok();
  return Status::InvalidArgument("axis " + std::to_string(axis) + " of a tensor of " +
                                 std::to_string(layout.axes.size()) + " axes");
}

Status ExpectMultiple(const std::string& what, int64_t size, RankOf group) {
  if (size % group.ranks == 0) return Status::Ok();
  return Status::InvalidArgument(what + ", expected a multiple of " + std::to_string(group.ranks) +
                                 " ranks");
}

std::vector<Segment> TakePieces(const std::vector<Segment>& segments,
                                const std::vector<Segment>& pieces) {
  std::vector<Segment> taken;
  for (const Segment& piece : pieces) {
    if (piece.is_padding) {
      taken.push_back({.length = piece.length, .is_padding = true});
    } else {
      AppendRange(segments, piece, &taken);
    }
  }
  return taken;
}

Result<ShardLayout> Take(ShardLayout layout, size_t axis, const std::vector<Segment>& pieces) {
  layout.axes[axis] = TakePieces(layout.axes[axis], pieces);
  layout = Canonical(std::move(layout));
  VARVE_RETURN_IF_ERROR(ValidateLayout(layout));  // with padding it may have become too large
  return layout;
}

}  // namespace varve::internal
