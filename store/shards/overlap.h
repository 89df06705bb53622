// SPDX-License-Identifier: Apache-2.0
//
// The elements that two shards of one tensor have in common, as contiguous runs. Slices, resharding
// and the proof that shards cover a tensor all use this arithmetic. It touches no elements. The
// cost of finding the runs grows with their number. The cost of counting their elements grows with
// the number of segments. A plain value. Any thread may call const functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "varve/shard_layout.h"

namespace varve::internal {

// Returns the part of one range in another. It is empty where there is none.
inline Range Intersect(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// `length` elements from `source` on go to the target's elements from `target` on.
struct CopyRun {
  uint64_t source = 0;
  uint64_t target = 0;
  uint64_t length = 0;
  bool operator==(const CopyRun&) const = default;
};

// `count` runs of `length` elements each. A step is the distance between two runs on one side. It
// has no meaning if there is one run.
struct CopyBlock {
  uint64_t source = 0;
  uint64_t target = 0;
  uint64_t length = 0;
  uint64_t count = 1;
  uint64_t source_step = 0;
  uint64_t target_step = 0;
};

class Overlap {
 public:
  static constexpr Range kEverywhere{0, INT64_MAX};

  // Precondition: both layouts are valid and have the same global shape.
  Overlap(const ShardLayout& source, const ShardLayout& target);

  // Returns the number of elements in common. The second counts only those at local places [begin,
  // end) of the source.
  uint64_t Count() const { return Count(kEverywhere); }
  uint64_t Count(Range source) const;
  // Calls `use(const CopyRun&)` for each run, by rising source. No run reaches out of `source`.
  template <typename Use>
  void ForEachRun(Range source, Use&& use) const {
    if (!axes_.empty()) WalkFrom(0, 0, 0, Clip(source), use);
  }
  // Gives the same runs, but as blocks of equal length and distance: `use(const CopyBlock&)`. It is
  // for copies, because finding a run costs more than copying a short one. The order is the same
  // each time, but not by rising source.
  template <typename Use>
  void ForEachBlock(Range source, Use&& use) const {
    if (!axes_.empty()) WalkBlocks(0, 0, 0, Clip(source), use);
  }
  // True when each run starts and ends on whole bytes of both sides, for elements of `bits`.
  bool IsOnWholeBytes(uint64_t bits) const;
  // Returns the first run that ForEachRun would give, without looking for others.
  std::optional<CopyRun> FindFirstRun(Range source) const;

 private:
  // Indices in common on one axis, as local indices of both, by rising `source`.
  struct Interval {
    int64_t source;
    int64_t target;
    int64_t length;
  };
  struct Axis {
    std::vector<Interval> intervals;
    int64_t source_stride;  // elements between neighbours
    int64_t target_stride;
    int64_t common_below;  // elements in common for one index of this axis
  };
  // Places [begin, end) in the products of both.
  struct Windows {
    Range source;
    Range target;
  };
  static std::vector<Interval> FindIntervals(const std::vector<Segment>& source,
                                             const std::vector<Segment>& target);
  void JoinContiguous(const std::vector<int64_t>& source_shape,
                      const std::vector<int64_t>& target_shape);
  Windows Clip(Range source) const;
  int64_t CountFrom(size_t axis, int64_t source, int64_t target, const Windows& windows) const;
  // The first returns the indices of an interval that reach into both windows. The next returns
  // those that lie within both.
  static Range Touching(const Interval& interval, const Axis& axis, int64_t s, int64_t t,
                        const Windows& windows);
  static Range Within(const Range& touching, const Axis& axis, int64_t s, int64_t t,
                      const Windows& windows);
  std::optional<CopyRun> FirstFrom(size_t axis, int64_t source, int64_t target,
                                   const Windows& windows) const;
  CopyRun RunAt(int64_t s, int64_t t, const Range& touching) const {
    return {static_cast<uint64_t>(s + touching.begin - source_base_),
            static_cast<uint64_t>(t + touching.begin - target_base_),
            static_cast<uint64_t>(touching.end - touching.begin)};
  }
  template <typename Use>
  void WalkFrom(size_t axis, int64_t source, int64_t target, const Windows& windows,
                Use& use) const;
  template <typename Use>
  void WalkBlocks(size_t axis, int64_t source, int64_t target, const Windows& windows,
                  Use& use) const;
  template <typename Use>
  void UseRows(int64_t source, int64_t target, int64_t rows, const Axis& axis, Use& use) const;

  std::vector<Axis> axes_;   // slowest first. The last is walked in runs. Empty: nothing in common
  int64_t source_base_ = 0;  // start of the flat ranges in the products
  int64_t target_base_ = 0;
  Range source_window_;
  Range target_window_;
};

template <typename Use>
void Overlap::WalkFrom(size_t i, int64_t source, int64_t target, const Windows& windows,
                       Use& use) const {
  const Axis& axis = axes_[i];
  for (const Interval& interval : axis.intervals) {
    const int64_t s = source + interval.source * axis.source_stride;
    const int64_t t = target + interval.target * axis.target_stride;
    const Range touching = Touching(interval, axis, s, t, windows);
    if (i + 1 < axes_.size()) {
      for (int64_t k = touching.begin; k < touching.end; ++k) {
        WalkFrom(i + 1, s + k * axis.source_stride, t + k * axis.target_stride, windows, use);
      }
    } else if (touching.begin < touching.end) {
      use(RunAt(s, t, touching));
    }
  }
}

template <typename Use>
void Overlap::WalkBlocks(size_t i, int64_t source, int64_t target, const Windows& windows,
                         Use& use) const {
  const auto use_run = [&](const CopyRun& run) {
    use(CopyBlock{.source = run.source, .target = run.target, .length = run.length});
  };
  if (i + 1 == axes_.size()) return WalkFrom(i, source, target, windows, use_run);
  const Axis& axis = axes_[i];
  for (const Interval& interval : axis.intervals) {
    const int64_t s = source + interval.source * axis.source_stride;
    const int64_t t = target + interval.target * axis.target_stride;
    const Range touching = Touching(interval, axis, s, t, windows);
    Range whole{touching.end, touching.end};  // rows that no window cuts
    if (i + 2 == axes_.size()) whole = Within(touching, axis, s, t, windows);
    if (whole.begin >= whole.end) whole = {touching.end, touching.end};
    for (int64_t k = touching.begin; k < touching.end; ++k) {
      if (k == whole.begin) {
        UseRows(s + k * axis.source_stride, t + k * axis.target_stride, whole.end - k, axis, use);
        k = whole.end;
        if (k == touching.end) break;
      }
      WalkBlocks(i + 1, s + k * axis.source_stride, t + k * axis.target_stride, windows, use);
    }
  }
}

// Walks neighbouring rows of the last axis of which everything in common is wanted. Where a row is
// in several intervals, it takes few rows at a time, so that they are still in the cache for the
// next interval.
template <typename Use>
void Overlap::UseRows(int64_t source, int64_t target, int64_t rows, const Axis& axis,
                      Use& use) const {
  constexpr int64_t kElementsAtATime = 4096;
  const std::vector<Interval>& intervals = axes_.back().intervals;
  const int64_t most =
      intervals.size() == 1 ? rows : std::max<int64_t>(8, kElementsAtATime / axis.source_stride);
  for (int64_t row = 0; row < rows; row += most) {
    for (const Interval& interval : intervals) {
      use(CopyBlock{.source = static_cast<uint64_t>(source + row * axis.source_stride +
                                                    interval.source - source_base_),
                    .target = static_cast<uint64_t>(target + row * axis.target_stride +
                                                    interval.target - target_base_),
                    .length = static_cast<uint64_t>(interval.length),
                    .count = static_cast<uint64_t>(std::min(most, rows - row)),
                    .source_step = static_cast<uint64_t>(axis.source_stride),
                    .target_step = static_cast<uint64_t>(axis.target_stride)});
    }
  }
}

}  // namespace varve::internal
