// SPDX-License-Identifier: Apache-2.0
//
// What is wrong with shards that make no whole tensor: which regions no shard holds, and which two
// shards hold the same elements. It is asked only once something is known to be wrong, so it may
// take longer than the proof that all is well (regions.h). Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/shard_layout.h"
#include "varve/tensor.h"

namespace varve {

// A shard, and who holds it: the number of a rank, or of a shard.
struct ShardHolder {
  uint32_t number = 0;
  DType dtype = DType::kF32;
  const ShardLayout* layout = nullptr;  // canonical; null: it has none
};

struct ShardFaults {
  std::vector<std::string> texts;  // one a fault
  std::vector<ShardLayout> holes;  // boxes that no shard holds, as many as were looked for
};

// Of shards of one tensor; no texts: they are whole. `what` is what the numbers are: "rank".
ShardFaults FindShardFaults(std::span<const ShardHolder> shards, std::string_view what);

}  // namespace varve
