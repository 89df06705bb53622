// SPDX-License-Identifier: Apache-2.0
//
// A RankGroup that moves bytes over NCCL, from GPU to GPU: for ranks that load together. It is in a
// library of its own, varve::nccl, so that only who asks for it is linked with NCCL: in CMake,
// target_link_libraries(trainer varve::varve varve::nccl).
//
//   VARVE_ASSIGN_OR_RETURN(const auto host, varve::SocketRanks(options));
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::NcclRanks(host.get(), {.device = local_rank}));
//
// NCCL knows neither lengths nor who has not come. So each call first goes over the host's ranks,
// which agree on what it is, and name ranks that make another call or are gone. Only the bytes of
// Broadcast and AllToAll go over NCCL. All ranks must run the same program.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "varve/rank_group.h"

namespace varve {

struct NcclOptions {
  // The number of CUDA's device for this rank. Each rank has its own.
  int device = 0;
  // How many bytes travel at a time, while the bytes before them are copied. It is the same on all
  // ranks. When the group is made it takes four times as much memory of the device, and four times
  // as much pinned memory of the host.
  size_t piece_bytes = size_t{4} << 20;
  // How long a call waits for NCCL while nothing arrives. It waits for other ranks as `host` does.
  std::chrono::milliseconds timeout = kDefaultRankTimeout;
};

// Collective over `host`. When this returns the group needs `host` no more, and the caller may go
// on using it. The ranks of the group are those of `host`. Messages number them so, too, if `host`
// has been split off. A rank that fails in the middle of a call, as with its device, leaves. The
// next call of the other ranks fails, and ranks in the same call fail by the timeout.
//
// kInvalidArgument: the options cannot be. kUnavailable: varve was built without NCCL, or the
// message says what CUDA or NCCL say. When it is so on one rank, all ranks get it.
Result<std::unique_ptr<RankGroup>> NcclRanks(RankGroup* host, const NcclOptions& options = {});

}  // namespace varve
