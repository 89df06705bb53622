// SPDX-License-Identifier: Apache-2.0
//
// How gpt_train becomes several ranks: started by mpirun, by torchrun or anything else that sets
// its variables, or by itself.
//
// Thread rule: the main thread, before there are others.
#pragma once

#include <memory>
#include <optional>

#include "varve/rank_group.h"

namespace gpt {

// Forks `num_ranks` processes of this one, as ranks on the loopback. In each of them: nullopt. In
// this one: when all have ended, the exit code of the first that failed, or 0; the others are
// killed when they are still there a while after it. SIGTERM, SIGINT and SIGUSR1 are passed on to
// the ranks.
varve::Result<std::optional<int>> Spawn(int num_ranks);

// The group that the environment says this process is of; nullptr: it is alone.
varve::Result<std::unique_ptr<varve::RankGroup>> JoinRanks();

}  // namespace gpt
