// SPDX-License-Identifier: Apache-2.0
//
// Which part of a global tensor a shard holds: one description for tensor parallelism with fused
// weights, ZeRO's flat slices, FSDP's uneven rows, renumbered experts and padded vocabularies.
//
//   // Rows 8 to 16 of a [64, 32] weight, as tensor-parallel rank 1 of 8 holds it:
//   varve::ShardLayout layout = varve::ShardLayout::Whole({64, 32});
//   layout.axes[0] = {{.begin = 8, .length = 8}};
//
//   // Elements 128 to 192 of those rows, as ZeRO rank 2 of 4 holds them:
//   layout.flat = varve::Range{128, 192};
//
// A plain value. Any thread may use an object of its own.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "varve/result.h"

namespace varve {

// A half-open range [begin, end) of indices.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Range&) const = default;
};

// A run of local indices on one axis: the global indices [begin, begin + length), or `length`
// indices of padding, to which no global element answers.
struct Segment {
  int64_t begin = 0;  // 0 for padding
  int64_t length = 0;
  bool is_padding = false;
  bool operator==(const Segment&) const = default;
};

// The shard is the product of one segment list an axis, a dense row-major tensor of shape
// ProductShape(). When `flat` is set, it is those elements of the product in row-major order, as a
// 1-d tensor. The flat range may lie beyond the end of the product, in part or whole. That is
// padding, too.
struct ShardLayout {
  std::vector<int64_t> global_shape;
  std::vector<std::vector<Segment>> axes;
  std::optional<Range> flat;

  // All of a tensor.
  static ShardLayout Whole(std::span<const int64_t> shape);
  static ShardLayout Whole(std::initializer_list<int64_t> shape) {
    return Whole(std::span<const int64_t>(shape.begin(), shape.size()));
  }

  // The lengths of the segment lists, and the shape of the tensor that the rank holds.
  // Precondition of these and all below: ValidateLayout.
  std::vector<int64_t> ProductShape() const;
  std::vector<int64_t> LocalShape() const;
  // The number of elements of the local tensor, of those of them that are not padding, and of the
  // global tensor.
  int64_t NumLocal() const;
  int64_t NumHeld() const;
  int64_t NumGlobal() const;

  bool operator==(const ShardLayout&) const = default;
};

// kInvalidArgument says which axis or range is wrong and what is allowed: one segment list an axis,
// segments within their axis, no global index twice on an axis, at most 2^61 elements, a flat range
// that does not begin below 0 or end before it begins.
Status ValidateLayout(const ShardLayout& layout);

// The same layout in one way of writing: neighbouring segments are joined, and empty ones left out.
// Layouts that hold the same elements at the same local places are then equal.
ShardLayout Canonical(ShardLayout layout);

// For people, as NumPy writes slices: "[8:16, :] of [64, 32], elements 128:192". Several segments
// of an axis are joined by '+'. Padding is "pad 3".
std::string ToString(const ShardLayout& layout);

}  // namespace varve
