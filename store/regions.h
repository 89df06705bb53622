// SPDX-License-Identifier: Apache-2.0
//
// What the shards of one tensor make together: the proof that they cover it, the choice of those
// that a region is read from, and the tensor as a list shows it. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "varve/result.h"
#include "varve/shard_layout.h"
#include "varve/tensor.h"

namespace varve {

// Proves that shards of these layouts, of one tensor, hold each of its elements, and none twice but
// in replicas, which have equal layouts. All layouts are valid and canonical. kInvalidArgument says
// which shards (by their index) overlap, or how many elements none holds.
Status ProveCoverage(std::span<const ShardLayout> shards);

// The indices of the shards that a region is put together from: of replicas the first. The region is
// valid. kInvalidArgument: another global shape; kCorruption: as for ProveCoverage, in the region.
Result<std::vector<size_t>> FindParts(std::span<const ShardLayout> shards,
                                      const ShardLayout& region);

// `shards` by name, then number. Those with layouts become one tensor a name.
std::vector<TensorInfo> JoinShards(std::vector<TensorInfo> shards);

// All of a box of the tensor: one range an axis, none for the whole. kInvalidArgument: not one range
// an axis, or a range outside its axis or reversed.
Result<ShardLayout> LayoutOfSlice(std::span<const int64_t> shape, std::span<const Range> slice);

}  // namespace varve
