// SPDX-License-Identifier: Apache-2.0
//
// A RankGroup that moves bytes over NCCL, from GPU to GPU: for ranks that load together. It is in a
// library of its own, varve::nccl, so that only who asks for it is linked with NCCL: in CMake,
// target_link_libraries(trainer varve::varve varve::nccl).
//
//   VARVE_ASSIGN_OR_RETURN(const auto host, varve::SocketRanks(options));
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::NcclRanks(host.get(), {.device = local_rank}));
//
// NCCL knows neither lengths nor who has not come, so each call first goes over ranks of the host:
// they agree on what it is, and name ranks that make another call or are gone. Over NCCL go only
// the bytes of Broadcast and AllToAll, which must be the same program's on all ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "varve/rank_group.h"

namespace varve {

struct NcclOptions {
  // Of CUDA, and no other rank's.
  int device = 0;
  // So many bytes travel at a time, while the ones before are copied; the same on all ranks. The
  // group takes four times as much memory of the device, and of the host, pinned, when it is made.
  size_t piece_bytes = size_t{4} << 20;
  // How long a call waits for NCCL while nothing arrives; for other ranks it waits as `host` does.
  std::chrono::milliseconds timeout = kDefaultRankTimeout;
};

// Collective over `host`, which is not needed any more when this returns and stays of use. The
// ranks of the group are those of `host`, in messages also if `host` has been split off.
// kInvalidArgument for options that cannot be; kUnavailable when varve was built without NCCL, or
// says what CUDA or NCCL say, on all ranks when it is so on one. A rank that fails in the middle of
// a call, as with its device, leaves, at which the others' next call fails; those in the same call
// by the timeout.
Result<std::unique_ptr<RankGroup>> NcclRanks(RankGroup* host, const NcclOptions& options = {});

}  // namespace varve
