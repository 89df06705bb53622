// SPDX-License-Identifier: Apache-2.0
//
// An AsyncCheckpointer for a job of several ranks. All ranks save one checkpoint together. A
// collective call succeeds on all of them, or fails on all of them with the same error. The results
// may differ only when ranks can no longer reach each other.
//
//   VARVE_ASSIGN_OR_RETURN(const auto options, varve::SocketRanksFromEnv());
//   VARVE_ASSIGN_OR_RETURN(const auto group, varve::SocketRanks(options));
//   VARVE_ASSIGN_OR_RETURN(const auto checkpointer,
//                          varve::OpenGroupCheckpointer("root", group.get()));
//   // Each rank loads the shards that it holds.
//   VARVE_RETURN_IF_ERROR(checkpointer->Restore("latest", {}, &state).status());
//   VARVE_RETURN_IF_ERROR(checkpointer->Save(step, state).status());
#pragma once

#include <filesystem>
#include <memory>

#include "varve/async_checkpointer.h"
#include "varve/rank_group.h"

namespace varve {

// Opens the root of a group (varve/group.h), or makes it. kFailedPrecondition: the root is not the
// same folder on all ranks. kInvalidArgument: options.remote is set, or an option is out of range.
// Other errors are those of Group::StartEpoch and Group::Join. Thread rule: as AsyncCheckpointer.
//
// This call is collective, and so are the calls of the checkpointer, except for RequireAwaited,
// last_stats, last_push, failure and store. All ranks make the collective calls in the same order.
// When one or more ranks fail in such a call, the call fails on all ranks. The error is that of the
// lowest rank that failed, and names that rank. It has a line for each other rank whose error
// differs, 20 lines at most. A save may fail after its AwaitStaged. If failure_is_fatal is true,
// every later call that saves or waits then returns the error of that save. There is one exception.
// AwaitStaged returns such an error only while a save is being staged. Close returns it in any
// case.
//
// The checkpointer communicates through `ranks` only inside these calls, on the caller's thread. In
// the background it only calls gone(), which does not communicate. `ranks` must outlive the
// checkpointer, and must not be used for anything else meanwhile.
//
// Rank 0 decides what concerns the whole checkpoint: retention, metrics, tags, trainer progress and
// topology. Restore resolves its step expression on rank 0 alone. Tensors, items and states of
// random number generators (TrainerProgress::rng) are those of all ranks. Restore gives rank r two
// sets of generators: those that rank 0 saved, and those that rank r saved. If both saved a
// generator with the same RngState::generator and with RngState::rank = r, rank r gets the one that
// it saved itself. Ranks may hold different tensors, or different shards of one tensor. Replicas,
// which are equal parts on several ranks, are saved once. All ranks make the same plan, which says
// which rank saves each replica. AwaitStaged compares replicas (CheckpointerOptions::replicas). A
// save commits only after that. With WhenBusy::kSkip, all ranks skip a step if the save before is
// still in progress on one of them.
//
// Close waits for the last save. If Close was not called, the destructor waits at most 30 s for the
// other ranks' parts of a save. If a part does not come in that time, or its rank is gone, the
// destructor gives the save up.
Result<std::unique_ptr<AsyncCheckpointer>> OpenGroupCheckpointer(
    const std::filesystem::path& root, RankGroup* ranks, const CheckpointerOptions& options = {});

}  // namespace varve
