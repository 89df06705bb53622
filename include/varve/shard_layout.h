// SPDX-License-Identifier: Apache-2.0
//
// A ShardLayout says which part of a global tensor a shard holds. It describes tensor parallelism
// with fused weights, flat slices of ZeRO, uneven rows of FSDP, renumbered experts, and padded
// vocabularies.
//
//   // Rows 8 to 16 of a [64, 32] weight, as tensor-parallel rank 1 of 8 holds it:
//   varve::ShardLayout layout = varve::ShardLayout::Whole({64, 32});
//   layout.axes[0] = {{.begin = 8, .length = 8}};
//
//   // Elements 128 to 192 of those rows, as ZeRO rank 2 of 4 holds them:
//   layout.flat = varve::Range{128, 192};
//
// All types are plain values.
//
// Thread rule: one thread at a time for each object. The functions are stateless, and any thread
// may call them.
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

// Consecutive local indices on one axis: the global indices [begin, begin + length), or `length`
// indices of padding, which are no elements of the global tensor.
struct Segment {
  int64_t begin = 0;  // 0 for padding
  int64_t length = 0;
  bool is_padding = false;
  bool operator==(const Segment&) const = default;
};

// A layout has one list of segments for each axis. The segments of an axis, one after the other,
// give the indices that the shard has on this axis. The *product* of the lists of all axes is the
// dense row-major tensor over these indices, of shape ProductShape(). Without `flat`, the shard is
// this product. With `flat`, the shard is a 1-d tensor: the elements of the product in that range,
// counted in row-major order. Elements of the range beyond the end of the product are padding.
struct ShardLayout {
  std::vector<int64_t> global_shape;
  std::vector<std::vector<Segment>> axes;
  std::optional<Range> flat;

  // The layout of a whole tensor.
  static ShardLayout Whole(std::span<const int64_t> shape);
  static ShardLayout Whole(std::initializer_list<int64_t> shape) {
    return Whole(std::span<const int64_t>(shape.begin(), shape.size()));
  }

  // ProductShape has the sum of the segment lengths for each axis. LocalShape is the shape of the
  // shard. Precondition of these and the functions below, except ValidateLayout: the layout is
  // valid.
  std::vector<int64_t> ProductShape() const;
  std::vector<int64_t> LocalShape() const;
  // NumLocal is the number of elements of the shard. NumHeld is the number without padding.
  // NumGlobal is the number of elements of the global tensor.
  int64_t NumLocal() const;
  int64_t NumHeld() const;
  int64_t NumGlobal() const;

  bool operator==(const ShardLayout&) const = default;
};

// Checks a layout. It must have one segment list for each axis. Segments must lie within their
// axis, and must not have a global index twice. The flat range must begin at 0 or later, and must
// not end before it begins. A layout has at most 2^61 elements. kInvalidArgument says which axis or
// range is wrong, and what is allowed.
Status ValidateLayout(const ShardLayout& layout);

// Returns the canonical form of a layout: neighbouring segments are joined, and empty ones are left
// out. The flat range stays as it is. Two layouts without flat ranges have the same canonical form
// if they have equal local shapes and hold the same elements (at least one) at the same local
// places. For layouts with flat ranges there is no such guarantee: two of them may hold the same
// elements and have different canonical forms.
ShardLayout Canonical(ShardLayout layout);

// Returns a text for people, with slices as in NumPy: "[8:16, :] of [64, 32], elements 128:192".
// Several segments of an axis are joined by '+'. Three indices of padding are "pad 3".
std::string ToString(const ShardLayout& layout);

}  // namespace varve
