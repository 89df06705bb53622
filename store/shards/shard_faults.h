// SPDX-License-Identifier: Apache-2.0
//
// Finds what is wrong with shards that do not make a whole tensor: regions that no shard holds, and
// pairs of shards that hold the same elements. It runs only when something is known to be wrong, so
// it may take longer than the proof that all is well (regions.h). Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/shard_layout.h"
#include "varve/tensor.h"

namespace varve::internal {

// A shard and its holder, which is the number of a rank or of a shard.
struct ShardHolder {
  uint32_t number = 0;
  DType dtype = DType::kF32;
  const ShardLayout* layout = nullptr;  // canonical. Null: it has none
};

struct ShardFaults {
  std::vector<std::string> texts;  // one a fault
  std::vector<ShardLayout> holes;  // boxes that no shard holds, at most as many as were asked for
};

// Finds the faults of shards of one tensor. Without texts the shards are whole. `what` says what
// the numbers are, such as "rank".
ShardFaults FindShardFaults(std::span<const ShardHolder> shards, std::string_view what);

}  // namespace varve::internal
