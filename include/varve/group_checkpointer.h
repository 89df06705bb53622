// SPDX-License-Identifier: Apache-2.0
//
// An AsyncCheckpointer for a job of several ranks: all of them save one checkpoint, and every call
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

// Opens the root of a group (varve/group.h), or makes it. All ranks call it, and all calls of the
// result but last_stats, failure and store, in the same order. They are collective and fail on
// all ranks alike: with the error of the lowest rank that has one, named, and a line for each other
// rank whose error says something else, 20 at most. AwaitStaged asks the others only when something
// is being staged: a later error is said by the next call that saves, waits or closes. `ranks` is
// spoken through inside these calls only, on the caller's thread; it must outlive the checkpointer
// and be used for nothing else meanwhile.
//
// Of what the options and states say about the whole checkpoint, that of rank 0 counts: retention,
// metrics, tags, trainer state, topology; Restore resolves "latest" and "best" on rank 0 alone.
// Items and tensors are those of all ranks, each of which may hold other shards of other tensors.
// What several ranks hold alike, its replicas, is saved once, by whom a plan says that all of them
// make alike; AwaitStaged finds replicas that differ (CheckpointerOptions::replicas), and a save
// commits after it. A step is skipped by all when the save before is under way on one of them
// (WhenBusy::kSkip).
//
// Close waits for the last save. One that goes without it, as after an error, waits 30 s at most
// for what other ranks have to do for that save: if one is gone it is aborted. kFailedPrecondition:
// the root is not the same on all ranks.
Result<std::unique_ptr<AsyncCheckpointer>> OpenGroupCheckpointer(
    const std::filesystem::path& root, RankGroup* ranks, const CheckpointerOptions& options = {});

}  // namespace varve
