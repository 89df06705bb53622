// SPDX-License-Identifier: Apache-2.0
//
// A load into all ranks of a job, which ends alike on all of them.
#pragma once

#include <functional>

#include "trainer_hooks/load/load_through.h"
#include "varve/rank_group.h"

namespace varve::internal {

// Loads into this rank's `into` as LoadThrough does.
using LoadOne = std::function<Result<LoadReport>(const LoadOptions&, RegionReader*)>;

// Collective. What one rank has is unexpected on none; with LoadOptions::exchange on one rank, all
// read each chunk once (exchange.h). An error of one rank is that of all, named.
Result<LoadReport> LoadTogether(RankGroup* ranks, const LoadOptions& options,
                                const TrainingState& into, const LoadOne& load);

}  // namespace varve::internal
