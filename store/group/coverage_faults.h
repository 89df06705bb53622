// SPDX-License-Identifier: Apache-2.0
//
// Messages about shards of many ranks that do not make whole tensors. A message covers all tensors
// and names the ranks. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "store/group/catalogue.h"
#include "varve/status.h"

namespace varve::internal {

// The range [first, second) of one tensor's shards in a catalogue.
using TensorShards = std::pair<size_t, size_t>;

// `shards` are the sorted shards of a catalogue. `broken` are the tensors that are not whole, by
// name. For a hole, the message gives its region, the ranks beside it, and the ranks that should
// have it. Those are ranks that hold this region of another tensor that is whole and cut alike.
Status CoverageError(std::span<const CatalogueShard> shards, std::span<const TensorShards> broken);

// `originals[i]` is the first shard that shard i is a replica of, or i itself. kInvalidArgument
// lists all replicas that differ.
Status CompareReplicas(std::span<const CatalogueShard> shards, std::span<const size_t> originals);

}  // namespace varve::internal
