// SPDX-License-Identifier: Apache-2.0
#include "varve/shard_layout.h"

#include <algorithm>
#include <limits>

#include "base/util.h"
#include "store/shards/overlap.h"
#include "varve/tensor.h"

namespace varve {
using namespace internal;

namespace {

std::string AxisName(size_t axis) { return "axis " + std::to_string(axis); }

std::string RangeText(int64_t begin, int64_t end) {
  return std::to_string(begin) + ":" + std::to_string(end);
}

int64_t Length(const std::vector<Segment>& segments) {
  int64_t length = 0;
  for (const Segment& segment : segments) length += segment.length;
  return length;
}

Status ValidateSegments(const std::vector<Segment>& segments, int64_t size) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t total = 0;
  std::vector<Range> taken;
  for (const Segment& segment : segments) {
    if (segment.length < 0 || segment.length > kMax - total) {
      return Status::InvalidArgument("a segment of " + std::to_string(segment.length) + " indices");
    }
    total += segment.length;
    if (segment.is_padding || segment.length == 0) continue;
    if (segment.begin < 0 || segment.begin > size || segment.length > size - segment.begin) {
      return Status::InvalidArgument("segment " + std::to_string(segment.begin) + " + " +
                                     std::to_string(segment.length) + " of an axis of " +
                                     std::to_string(size) + " indices");
    }
    taken.push_back({segment.begin, segment.begin + segment.length});
  }
  std::sort(taken.begin(), taken.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < taken.size(); ++i) {
    if (taken[i].begin < taken[i - 1].end) {
      return Status::InvalidArgument("index " + std::to_string(taken[i].begin) + " twice");
    }
  }
  return Status::Ok();
}

std::string SegmentsText(const std::vector<Segment>& segments, int64_t size) {
  if (segments == std::vector<Segment>{{0, size}}) return ":";
  std::string text;
  for (const Segment& segment : segments) {
    if (!text.empty()) text += "+";
    text += segment.is_padding ? "pad " + std::to_string(segment.length)
                               : RangeText(segment.begin, segment.begin + segment.length);
  }
  return text.empty() ? "0:0" : text;
}

// Sums of a few places fit int64, even where an axis is empty.
constexpr int64_t kMaxElements = int64_t{1} << 61;

Status CheckSize(const std::vector<int64_t>& shape) {
  VARVE_RETURN_IF_ERROR(NumElements(shape).status());
  int64_t size = 1;
  for (const int64_t axis : shape) {
    if (!__builtin_mul_overflow(size, std::max<int64_t>(axis, 1), &size) && size <= kMaxElements) {
      continue;
    }
    return Status::InvalidArgument("shape " + ShapeName(shape) + " has more than 2^61 places");
  }
  return Status::Ok();
}

}  // namespace

ShardLayout ShardLayout::Whole(std::span<const int64_t> shape) {
  ShardLayout layout;
  layout.global_shape.assign(shape.begin(), shape.end());
  for (const int64_t size : shape) layout.axes.push_back({{.length = size}});
  return layout;
}

std::vector<int64_t> ShardLayout::ProductShape() const {
  std::vector<int64_t> shape;
  for (const auto& segments : axes) shape.push_back(Length(segments));
  return shape;
}

std::vector<int64_t> ShardLayout::LocalShape() const {
  if (flat.has_value()) return {flat->end - flat->begin};
  return ProductShape();
}

int64_t ShardLayout::NumLocal() const { return *NumElements(LocalShape()); }

int64_t ShardLayout::NumHeld() const {
  return static_cast<int64_t>(Overlap(*this, Whole(global_shape)).Count());
}

int64_t ShardLayout::NumGlobal() const { return *NumElements(global_shape); }

Status ValidateLayout(const ShardLayout& layout) {
  if (layout.axes.size() != layout.global_shape.size()) {
    return Status::InvalidArgument("the layout has " + std::to_string(layout.axes.size()) +
                                   " axes, the global tensor " +
                                   std::to_string(layout.global_shape.size()));
  }
  VARVE_RETURN_IF_ERROR(CheckSize(layout.global_shape).WithContext("global shape"));
  for (size_t axis = 0; axis < layout.axes.size(); ++axis) {
    const Status status = ValidateSegments(layout.axes[axis], layout.global_shape[axis]);
    if (!status.ok()) return status.WithContext(AxisName(axis));
  }
  VARVE_RETURN_IF_ERROR(CheckSize(layout.ProductShape()).WithContext("shard"));
  if (layout.flat.has_value() && (layout.flat->begin < 0 || layout.flat->end < layout.flat->begin ||
                                  layout.flat->end > kMaxElements)) {
    return Status::InvalidArgument("flat range " + RangeText(layout.flat->begin, layout.flat->end) +
                                   ", expected 0 <= begin <= end <= 2^61");
  }
  return Status::Ok();
}

ShardLayout Canonical(ShardLayout layout) {
  for (auto& segments : layout.axes) {
    std::vector<Segment> joined;
    for (Segment segment : segments) {
      if (segment.length == 0) continue;
      if (segment.is_padding) segment.begin = 0;
      if (!joined.empty() && joined.back().is_padding == segment.is_padding &&
          (segment.is_padding || joined.back().begin + joined.back().length == segment.begin)) {
        joined.back().length += segment.length;
      } else {
        joined.push_back(segment);
      }
    }
    segments = std::move(joined);
  }
  return layout;
}

std::string ToString(const ShardLayout& layout) {
  std::string text = "[";
  for (size_t i = 0; i < layout.axes.size(); ++i) {
    if (i > 0) text += ", ";
    text += SegmentsText(layout.axes[i], layout.global_shape[i]);
  }
  text += "] of " + ShapeName(layout.global_shape);
  if (layout.flat.has_value()) {
    text += ", elements " + RangeText(layout.flat->begin, layout.flat->end);
  }
  return text;
}

}  // namespace varve
