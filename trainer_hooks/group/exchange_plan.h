// SPDX-License-Identifier: Apache-2.0
//
// Which rank reads what when the ranks of a job load together: each chunk that several ranks want
// is read by one of them, which sends each what it wants of it. A pure function of what is stored
// and wanted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer_hooks/group/held_tensor.h"
#include "varve/tensor.h"

namespace varve::internal {

// A few neighbouring chunks of a stored shard, read at once.
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
  // Items that are read, sent and received before the next ones are.
  std::vector<std::vector<ExchangeItem>> rounds;
};

// kInvalidArgument names the first tensor that is wanted otherwise than it is stored: not there, of
// another dtype or global shape, or with elements that share bytes. `shards`: as ListShards gives
// them.
Status CheckWanted(std::span<const TensorInfo> shards, std::span<const HeldTensor> wanted);

// `wanted[r]`: what rank r wants, as CheckWanted allows it. No rank holds much more than `budget`
// bytes of a round at once.
ExchangePlan PlanExchange(std::span<const TensorInfo> shards,
                          std::span<const std::vector<HeldTensor>> wanted, uint64_t budget);

// What a stored shard holds.
ShardLayout LayoutOfShard(const TensorInfo& shard);

}  // namespace varve::internal
