// SPDX-License-Identifier: Apache-2.0
//
// What the shards of one tensor make together. There is the proof that they cover the tensor, the
// choice of shards to read a region from, and the tensor as a list shows it. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/result.h"
#include "varve/shard_layout.h"
#include "varve/tensor.h"

namespace varve::internal {

// Returns which part of the global tensor a shard holds: its layout, or all if it has none.
ShardLayout LayoutOf(const TensorSpec& shard);

// Proves that shards of these layouts hold every element of the tensor, and none twice except in
// replicas, which have equal layouts. All layouts must be valid and canonical. kInvalidArgument
// names the shards that overlap (by their index), or the number of elements that none holds.
Status ProveCoverage(std::span<const ShardLayout> shards);
// The same without a message, for layouts that are all different.
bool AreWhole(std::span<const ShardLayout* const> distinct);

// Returns the indices of the shards that make up a region. It takes the first of several
// replicas. The region must be valid. kInvalidArgument: another global shape. kCorruption: as for
// ProveCoverage, within the region.
Result<std::vector<size_t>> FindParts(std::span<const ShardLayout> shards,
                                      const ShardLayout& region);

// How to read a region. It is the local tensor of a shard of the same layout, with its padding, or
// is put together from parts.
struct RegionPlan {
  std::optional<size_t> same;
  std::vector<size_t> parts;  // set when there is no such shard
};
// Errors as FindParts.
Result<RegionPlan> PlanRegion(std::span<const ShardLayout> shards, const ShardLayout& region);

// Checks that the buffer and the padding of a request fit what it reads. kInvalidArgument starts
// with `where`.
Status CheckBuffer(const std::string& where, const ReadRequest& request, DType dtype,
                   const ShardLayout& wanted);
// Fills the whole buffer with the padding value if the region has padding.
void FillPadding(const ReadRequest& request, const ShardLayout& region);

// `shards` are ordered by name, then number. Shards with layouts become one tensor for each name.
std::vector<TensorInfo> JoinShards(std::vector<TensorInfo> shards);

// Returns the layout of a box of the tensor. It takes one range an axis, or none for the whole
// tensor. kInvalidArgument: the number of ranges is wrong, or a range is outside its axis or
// reversed.
Result<ShardLayout> LayoutOfSlice(std::span<const int64_t> shape, std::span<const Range> slice);

}  // namespace varve::internal
