// SPDX-License-Identifier: Apache-2.0
//
// Plans which rank reads what when the ranks of a job load together. A chunk that several ranks
// want is read by one of them, which sends each of the others its part. The plan is a pure function
// of what is stored and what is wanted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer_hooks/group/held_tensor.h"
#include "varve/tensor.h"

namespace varve::internal {

// A few neighbouring chunks of a stored shard, which are read at once.
struct ExchangeItem {
  struct Consumer {
    uint32_t rank = 0;
    uint32_t wanted = 0;  // in the rank's list
    uint32_t region = 0;  // of ExchangePlan::regions
  };
  uint32_t shard = 0;  // in the list of stored shards
  ShardLayout layout;  // of what is read
  uint32_t reader = 0;
  std::vector<Consumer> consumers;  // by rank
};

struct ExchangePlan {
  std::vector<ShardLayout> regions;  // all that are wanted, each once
  // For each rank, and for each tensor of its list: true if the rank gets the tensor by items. The
  // rank shares no chunk of its other tensors, and reads them by itself.
  std::vector<std::vector<bool>> is_exchanged;
  // Each round has the items that are read, sent and received before those of the next round.
  std::vector<std::vector<ExchangeItem>> rounds;
};

// kInvalidArgument names the first tensor that cannot be read as it is wanted: it is not there, has
// another dtype or global shape, or has elements that share bytes. `shards` is what ListShards
// returns.
Status CheckWanted(std::span<const TensorInfo> shards, std::span<const HeldTensor> wanted);

// `wanted[r]` is what rank r wants. CheckWanted must allow it. No rank holds much more than
// `budget` bytes of a round at once.
ExchangePlan PlanExchange(std::span<const TensorInfo> shards,
                          std::span<const std::vector<HeldTensor>> wanted, uint64_t budget);

}  // namespace varve::internal
