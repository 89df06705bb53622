// SPDX-License-Identifier: Apache-2.0
//
// Makes gpt_train run as several ranks. mpirun starts them, or torchrun, or any program that sets
// torchrun's variables, or gpt_train itself.
//
// Thread rule: the main thread, before other threads start.
#pragma once

#include <memory>
#include <optional>

#include "varve/rank_group.h"

namespace gpt {

// Forks `num_ranks` processes of this one, as ranks on the loopback. In each of them it returns
// nullopt. In this process it waits until all have ended, and returns the exit code of the first
// that failed, or 0. Ranks that are still running some time after a failure are killed. SIGTERM,
// SIGINT and SIGUSR1 are passed on to the ranks.
varve::Result<std::optional<int>> Spawn(int num_ranks);

// Joins the group that the environment names for this process. nullptr = it is alone.
varve::Result<std::unique_ptr<varve::RankGroup>> JoinRanks();

}  // namespace gpt
