// SPDX-License-Identifier: Apache-2.0
//
// What the shards of one tensor make together: the proof that they cover it, the choice of those
// that a region is read from, and the tensor as a list shows it. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/result.h"
#include "varve/shard_layout.h"
#include "varve/tensor.h"

namespace varve {

// Proves that shards of these layouts, of one tensor, hold each of its elements, and none twice but
// in replicas, which have equal layouts. All layouts are valid and canonical. kInvalidArgument says
// which shards (by their index) overlap, or how many elements none holds.
Status ProveCoverage(std::span<const ShardLayout> shards);
// The same without words, of layouts no two of which are equal.
bool AreWhole(std::span<const ShardLayout* const> distinct);

// The indices of the shards that a region is put together from: of replicas the first. The region
// is valid. kInvalidArgument: another global shape; kCorruption: as for ProveCoverage, in the
// region.
Result<std::vector<size_t>> FindParts(std::span<const ShardLayout> shards,
                                      const ShardLayout& region);

// How a region is read: as the local tensor of a shard of its own layout, with its padding, or put
// together from parts.
struct RegionPlan {
  std::optional<size_t> same;
  std::vector<size_t> parts;  // when there is none
};
// Errors as FindParts.
Result<RegionPlan> PlanRegion(std::span<const ShardLayout> shards, const ShardLayout& region);

// The buffer and the padding of a request fit what it reads. kInvalidArgument begins with `where`.
Status CheckBuffer(const std::string& where, const ReadRequest& request, DType dtype,
                   const ShardLayout& wanted);
// Gives all of the buffer the value of padding, when the region has any.
void FillPadding(const ReadRequest& request, const ShardLayout& region);

// `shards` by name, then number. Those with layouts become one tensor a name.
std::vector<TensorInfo> JoinShards(std::vector<TensorInfo> shards);

// All of a box of the tensor: one range an axis, none for the whole. kInvalidArgument: not one
// range an axis, or a range outside its axis or reversed.
Result<ShardLayout> LayoutOfSlice(std::span<const int64_t> shape, std::span<const Range> slice);

}  // namespace varve
