// SPDX-License-Identifier: Apache-2.0
//
// A load of all ranks together: a chunk that several of them want is read once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/device_tensor_source.h"
#include "varve/rank_group.h"

namespace varve::internal {

// What a rank holds of the round that is sent (what it has read, has ready to send, and has
// received) and of the next one, which is read meanwhile. Beside it is what any read holds.
inline constexpr uint64_t kExchangeBudgetBytes = uint64_t{64} << 20;

// As reader.ReadMany(requests), of whole tensors and regions without shard numbers. Collective:
// every rank reads a part of what is wanted and sends the others what they want of that, in pieces
// of bounded size with a digest. An error of one rank is that of all, named. `shards`: what
// reader.ListShards gives.
Status ReadTogether(const CheckpointReader& reader, std::span<const TensorInfo> shards,
                    std::span<const ReadRequest> requests, RankGroup* ranks);

// The same for regions whose `out` is memory of ranks->device(), on which `devices` copies. What is
// received is digested there, and comes to no host. Only regions that share a chunk with those of
// other ranks are read, and `filled` says which. When it returns, also after an error, no more
// bytes will be written. `devices` may be null on a rank without requests.
Status ReadTogetherToDevice(const CheckpointReader& reader, std::span<const TensorInfo> shards,
                            std::span<const ReadRequest> requests, RankGroup* ranks,
                            DeviceTensorSource* devices, std::vector<bool>* filled);

}  // namespace varve::internal
