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

// The memory that a rank has for the round that is sent (what it has read, has ready to send, and
// has received) and for the next one, which is read meanwhile. The memory of an ordinary read comes
// on top.
inline constexpr uint64_t kExchangeBudgetBytes = uint64_t{64} << 20;

// Does what reader.ReadMany(requests) does, for whole tensors and regions without shard numbers. It
// is collective. Every rank reads a part of what is wanted, and sends the others what they want of
// that part, in pieces of bounded size with a digest. If one rank has an error, all ranks return
// it, with the rank's name. `shards` is what reader.ListShards returns.
Status ReadTogether(const CheckpointReader& reader, std::span<const TensorInfo> shards,
                    std::span<const ReadRequest> requests, RankGroup* ranks);

// The same for regions whose `out` is memory of ranks->device(), on which `devices` copies. What is
// received is digested there, and is copied to no host. Only regions that share a chunk with those
// of other ranks are read. `filled` says which. When it returns, also after an error, no more bytes
// will be written. `devices` may be null on a rank without requests.
Status ReadTogetherToDevice(const CheckpointReader& reader, std::span<const TensorInfo> shards,
                            std::span<const ReadRequest> requests, RankGroup* ranks,
                            DeviceTensorSource* devices, std::vector<bool>* filled);

}  // namespace varve::internal
