// SPDX-License-Identifier: Apache-2.0
//
// What two shards of one tensor have in common, as contiguous runs: the arithmetic of slices, of
// resharding and of the proof that shards cover a tensor. No elements are touched; finding the runs
// costs in proportion to their number, counting their elements to that of the segments.
// A plain value; const functions from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "varve/shard_layout.h"

namespace varve {

// `length` elements of the source from `source` on go to the target from `target` on.
struct CopyRun {
  uint64_t source = 0;
  uint64_t target = 0;
  uint64_t length = 0;
  bool operator==(const CopyRun&) const = default;
};

class Overlap {
 public:
  static constexpr Range kEverywhere{0, INT64_MAX};

  // Precondition: both layouts are valid and of one global shape.
  Overlap(const ShardLayout& source, const ShardLayout& target);

  // Elements in common; and those of them at local places [begin, end) of the source.
  uint64_t Count() const { return Count(kEverywhere); }
  uint64_t Count(Range source) const;
  // Calls `use` for each run, by rising source; none reaches out of `source`.
  void ForEachRun(Range source, const std::function<void(const CopyRun&)>& use) const;

 private:
  // Indices in common on one axis, as local indices of both; by rising `source`.
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
  // Places in the products of both, [begin, end).
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
  void WalkFrom(size_t axis, int64_t source, int64_t target, const Windows& windows,
                const std::function<void(const CopyRun&)>& use) const;

  std::vector<Axis> axes_;  // slowest first; the last one is walked in runs; none: nothing in common
  int64_t source_base_ = 0;  // of the flat ranges in the products
  int64_t target_base_ = 0;
  Range source_window_;
  Range target_window_;
};

}  // namespace varve
