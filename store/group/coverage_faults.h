// SPDX-License-Identifier: Apache-2.0
//
// What is said of shards of many ranks that make no whole tensors: of all tensors at once, with the
// ranks. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "store/group/catalogue.h"
#include "varve/status.h"

namespace varve {

// The shards of one tensor in a catalogue: [first, second).
using TensorShards = std::pair<size_t, size_t>;

// `shards` are those of a catalogue, sorted; `broken` are the tensors that are not whole, by name.
// A hole comes with its region, with the ranks beside it, and with those that are expected to have
// it: that hold this region of another tensor, which is whole and cut alike.
Status CoverageError(std::span<const CatalogueShard> shards, std::span<const TensorShards> broken);

// `originals[i]` is the first shard that shard i is a replica of, or i. kInvalidArgument lists all
// replicas that differ.
Status CompareReplicas(std::span<const CatalogueShard> shards, std::span<const size_t> originals);

}  // namespace varve
