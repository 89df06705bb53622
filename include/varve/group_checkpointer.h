// SPDX-License-Identifier: Apache-2.0
//
// An AsyncCheckpointer for a job of several ranks. All of them save one checkpoint, and every call
// has one outcome on all of them.
//
//   VARVE_ASSIGN_OR_RETURN(const auto options, varve::SocketRanksFromEnv());
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::SocketRanks(options));
//   VARVE_ASSIGN_OR_RETURN(const auto checkpointer, varve::OpenGroupCheckpointer("root",
//   group.get()));
//   // Each rank into the shards that it holds.
//   VARVE_RETURN_IF_ERROR(checkpointer->Restore("latest", {}, &state).status());
//   VARVE_RETURN_IF_ERROR(checkpointer->Save(step, state).status());
#pragma once

#include <filesystem>
#include <memory>

#include "varve/async_checkpointer.h"
#include "varve/rank_group.h"

namespace varve {

// Opens the root of a group (varve/group.h), or makes it. The call is collective: all ranks make
// it. So are all calls of the result but last_stats, failure and store, in the same order on all
// ranks. A collective call fails on all ranks alike. Its error is that of the lowest rank that has
// one, with the rank's name, and a line for each other rank whose error says something else, 20 at
// most. AwaitStaged asks the other ranks only when something is being staged. The next call that
// saves, waits or closes returns an error that comes later.
//
// The checkpointer speaks through `ranks` inside these calls only, on the caller's thread. `ranks`
// must outlive the checkpointer and be used for nothing else meanwhile.
//
// Options and states of rank 0 decide what concerns the whole checkpoint: retention, metrics, tags,
// trainer state and topology. Restore resolves "latest" and "best" on rank 0 alone. Items and
// tensors are those of all ranks, and each rank may hold other shards of other tensors. What
// several ranks hold alike, its replicas, is saved once. All ranks make the same plan, which says
// who saves it. AwaitStaged finds replicas that differ (CheckpointerOptions::replicas), and a save
// commits after that. When the save before is under way on one rank, all ranks skip the step
// (WhenBusy::kSkip).
//
// Close waits for the last save. Destroying the checkpointer without Close waits at most 30 s for
// other ranks. If one is gone, the save is aborted. kFailedPrecondition: the root is not the same
// on all ranks.
Result<std::unique_ptr<AsyncCheckpointer>> OpenGroupCheckpointer(
    const std::filesystem::path& root, RankGroup* ranks, const CheckpointerOptions& options = {});

}  // namespace varve
