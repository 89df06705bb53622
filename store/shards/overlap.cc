// SPDX-License-Identifier: Apache-2.0
#include "store/shards/overlap.h"

#include <algorithm>
#include <utility>

namespace varve::internal {

namespace {

// A segment with the local index at which it starts.
struct Placed {
  int64_t global;
  int64_t local;
  int64_t length;
};

// Returns the segments of an axis that hold elements, by rising global index.
std::vector<Placed> Place(const std::vector<Segment>& segments) {
  std::vector<Placed> placed;
  int64_t local = 0;
  for (const Segment& segment : segments) {
    if (!segment.is_padding && segment.length > 0) {
      placed.push_back({segment.begin, local, segment.length});
    }
    local += segment.length;
  }
  std::sort(placed.begin(), placed.end(),
            [](const Placed& a, const Placed& b) { return a.global < b.global; });
  return placed;
}

int64_t Product(const std::vector<int64_t>& lengths) {
  int64_t product = 1;
  for (const int64_t length : lengths) product *= length;
  return product;
}

// Returns the places of the local tensor in the product. There are none beyond its end.
Range WindowOf(const ShardLayout& layout) {
  const int64_t size = Product(layout.ProductShape());
  if (!layout.flat.has_value()) return {0, size};
  return {std::min(layout.flat->begin, size), std::min(layout.flat->end, size)};
}

// An index covers `stride` places, the first index from `base` on. The first function returns
// indices that reach into a window, the next those that lie within it.
Range IndicesTouching(int64_t base, int64_t stride, const Range& window) {
  const int64_t begin = std::max<int64_t>(window.begin - base, 0);
  const int64_t end = std::max<int64_t>(window.end - base, 0);
  return {begin / stride, (end + stride - 1) / stride};
}
Range IndicesWithin(int64_t base, int64_t stride, const Range& window) {
  const int64_t begin = std::max<int64_t>(window.begin - base, 0);
  const int64_t end = std::max<int64_t>(window.end - base, 0);
  return {(begin + stride - 1) / stride, end / stride};
}

}  // namespace

Overlap::Overlap(const ShardLayout& source, const ShardLayout& target)
    : source_base_(source.flat.has_value() ? source.flat->begin : 0),
      target_base_(target.flat.has_value() ? target.flat->begin : 0),
      source_window_(WindowOf(source)),
      target_window_(WindowOf(target)) {
  const std::vector<int64_t> source_shape = source.ProductShape();
  const std::vector<int64_t> target_shape = target.ProductShape();
  axes_.push_back(
      {{{0, 0, 1}}, 1, 1, 1});  // for a 0-d tensor. Other tensors have it as their slowest axis
  for (size_t i = 0; i < source.axes.size(); ++i) {
    axes_.push_back({FindIntervals(source.axes[i], target.axes[i]), 1, 1, 1});
  }
  const bool empty = std::any_of(axes_.begin(), axes_.end(),
                                 [](const Axis& axis) { return axis.intervals.empty(); });
  if (empty) {
    axes_.clear();
    return;
  }
  int64_t source_stride = 1, target_stride = 1, common = 1;
  for (size_t i = axes_.size(); i-- > 0;) {
    Axis& axis = axes_[i];
    axis.source_stride = source_stride;
    axis.target_stride = target_stride;
    axis.common_below = common;
    int64_t indices = 0;
    for (const Interval& interval : axis.intervals) indices += interval.length;
    common *= indices;
    if (i > 0) {
      source_stride *= source_shape[i - 1];
      target_stride *= target_shape[i - 1];
    }
  }
  JoinContiguous(source_shape, target_shape);
}

std::vector<Overlap::Interval> Overlap::FindIntervals(const std::vector<Segment>& source,
                                                      const std::vector<Segment>& target) {
  const std::vector<Placed> from = Place(source), to = Place(target);
  std::vector<Interval> intervals;
  for (size_t i = 0, j = 0; i < from.size() && j < to.size();) {
    const int64_t begin = std::max(from[i].global, to[j].global);
    const int64_t from_end = from[i].global + from[i].length;
    const int64_t to_end = to[j].global + to[j].length;
    const int64_t end = std::min(from_end, to_end);
    if (begin < end) {
      intervals.push_back({from[i].local + (begin - from[i].global),
                           to[j].local + (begin - to[j].global), end - begin});
    }
    if (from_end == end) ++i;
    if (to_end == end) ++j;
  }
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.source < b.source; });
  return intervals;
}

// Joins an axis with the axis before it when both sides have all of it in the same order.
void Overlap::JoinContiguous(const std::vector<int64_t>& source_shape,
                             const std::vector<int64_t>& target_shape) {
  int64_t joined = 1;  // places of what axis i has taken in
  for (size_t i = axes_.size() - 1; i > 0; --i) {
    const Axis& whole = axes_[i];
    const int64_t size = joined * source_shape[i - 1];
    joined = 1;
    if (source_shape[i - 1] != target_shape[i - 1]) continue;
    if (whole.intervals.size() != 1 || whole.intervals[0].length != size) continue;
    joined = size;
    Axis& before = axes_[i - 1];
    for (Interval& interval : before.intervals) {
      interval.source *= size;
      interval.target *= size;
      interval.length *= size;
    }
    before.source_stride = whole.source_stride;
    before.target_stride = whole.target_stride;
    before.common_below = whole.common_below;
    axes_.erase(axes_.begin() + static_cast<ptrdiff_t>(i));
  }
}

// Clips places of the local source to those of the products.
Overlap::Windows Overlap::Clip(Range source) const {
  const auto place = [&](int64_t local) {
    return local >= source_window_.end - source_base_ ? source_window_.end : source_base_ + local;
  };
  const Range wanted{place(std::max<int64_t>(source.begin, 0)),
                     place(std::max<int64_t>(source.end, 0))};
  return {Intersect(source_window_, wanted), target_window_};
}

uint64_t Overlap::Count(Range source) const {
  if (axes_.empty()) return 0;
  return static_cast<uint64_t>(CountFrom(0, 0, 0, Clip(source)));
}

bool Overlap::IsOnWholeBytes(uint64_t bits) const {
  bool is_whole = true;
  ForEachBlock(kEverywhere, [&](const CopyBlock& block) {
    // Elements fill whole bytes in groups of 1, 2, 4 or 8. Several numbers are all multiples of the
    // group exactly when the bits that are set in any of them are.
    uint64_t places = block.source | block.target | block.length;
    if (block.count > 1) places |= block.source_step | block.target_step;
    is_whole = is_whole && places * bits % 8 == 0;
  });
  return is_whole;
}

std::optional<CopyRun> Overlap::FindFirstRun(Range source) const {
  if (axes_.empty()) return std::nullopt;
  return FirstFrom(0, 0, 0, Clip(source));
}

std::optional<CopyRun> Overlap::FirstFrom(size_t i, int64_t source, int64_t target,
                                          const Windows& windows) const {
  const Axis& axis = axes_[i];
  for (const Interval& interval : axis.intervals) {
    const int64_t s = source + interval.source * axis.source_stride;
    const int64_t t = target + interval.target * axis.target_stride;
    const Range touching = Touching(interval, axis, s, t, windows);
    if (i + 1 == axes_.size() && touching.begin < touching.end) return RunAt(s, t, touching);
    if (i + 1 == axes_.size()) continue;
    for (int64_t k = touching.begin; k < touching.end; ++k) {
      const std::optional<CopyRun> run =
          FirstFrom(i + 1, s + k * axis.source_stride, t + k * axis.target_stride, windows);
      if (run.has_value()) return run;
    }
  }
  return std::nullopt;
}

Range Overlap::Touching(const Interval& interval, const Axis& axis, int64_t s, int64_t t,
                        const Windows& windows) {
  return Intersect({0, interval.length},
                   Intersect(IndicesTouching(s, axis.source_stride, windows.source),
                             IndicesTouching(t, axis.target_stride, windows.target)));
}

Range Overlap::Within(const Range& touching, const Axis& axis, int64_t s, int64_t t,
                      const Windows& windows) {
  return Intersect(touching, Intersect(IndicesWithin(s, axis.source_stride, windows.source),
                                       IndicesWithin(t, axis.target_stride, windows.target)));
}

// `source` and `target` are the places of the first element of what lies below.
int64_t Overlap::CountFrom(size_t i, int64_t source, int64_t target, const Windows& windows) const {
  const Axis& axis = axes_[i];
  int64_t count = 0;
  for (const Interval& interval : axis.intervals) {
    const int64_t s = source + interval.source * axis.source_stride;
    const int64_t t = target + interval.target * axis.target_stride;
    const Range touching = Touching(interval, axis, s, t, windows);
    if (i + 1 == axes_.size()) {
      count += touching.end - touching.begin;
      continue;
    }
    const Range within = Within(touching, axis, s, t, windows);
    const int64_t inner = within.end - within.begin;
    count += inner * axis.common_below;
    for (int64_t k = touching.begin; k < touching.end; ++k) {
      if (inner > 0 && k == within.begin) k = within.end;
      if (k >= touching.end) break;
      count += CountFrom(i + 1, s + k * axis.source_stride, t + k * axis.target_stride, windows);
    }
  }
  return count;
}

}  // namespace varve::internal
