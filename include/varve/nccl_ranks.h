// SPDX-License-Identifier: Apache-2.0
//
// Makes a RankGroup that moves bytes over NCCL, from GPU to GPU, for ranks that load together. It
// is in a library of its own, varve::nccl, so that other programs are not linked with NCCL. In
// CMake: target_link_libraries(trainer varve::varve varve::nccl).
//
//   VARVE_ASSIGN_OR_RETURN(const auto host, varve::SocketRanks(options));
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::NcclRanks(host.get(), {.device = local_rank}));
//
// A receiver in NCCL must know the length of a message beforehand, and NCCL does not say which rank
// is missing. So in each call the ranks first agree on the call over a second RankGroup, which
// NcclRanks makes from `host` with Split. An error names the ranks that make another call or are
// gone. Only the bytes of Broadcast, AllToAll and AllToAllToDevice go over NCCL. All ranks must run
// the same program.
//
// When ranks load together (LoadOptions::exchange) into tensors that lie on each rank's
// NcclOptions::device, the chunks go from device to device. Only one host handles the bytes of a
// chunk: the host of the rank that reads the chunk from the store.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "varve/rank_group.h"

namespace varve {

struct NcclOptions {
  // The CUDA device of this rank. Each rank has its own device.
  int device = 0;
  // The bytes of one piece. NCCL moves a piece while the one before it is copied. `piece_bytes` is
  // the same on all ranks. The group takes 4 * piece_bytes of device memory and 4 * piece_bytes of
  // pinned host memory when it is made. A load from device to device takes about 32 MiB more of
  // device memory, until the group is destroyed.
  size_t piece_bytes = size_t{4} << 20;
  // How long a call waits for NCCL while nothing arrives. Before a call uses NCCL, the ranks agree
  // on the call over the second RankGroup. The second RankGroup starts with the limit of `host`.
  // The group's set_timeout changes both limits.
  std::chrono::milliseconds timeout = kDefaultRankTimeout;
};

// Makes the group. The call is collective over `host`. NcclRanks uses `host` only until it returns.
// The caller may then go on using `host`. Each rank has the same number in the new group as in
// `host`, and errors give this number. There is one exception. If `host` was made by Split, an
// error of the second RankGroup gives the rank's number in the original group. Such errors are:
// ranks make different calls, or a rank is gone. If a rank fails inside a call, for example because
// of its device, it leaves the group. Other ranks in the same call fail by the timeout, and their
// next call fails, too.
//
// kInvalidArgument: an option is out of range, or differs between ranks. kUnavailable: varve was
// built without NCCL, or CUDA or NCCL failed. The message has their text. All ranks get the error.
Result<std::unique_ptr<RankGroup>> NcclRanks(RankGroup* host, const NcclOptions& options = {});

}  // namespace varve
