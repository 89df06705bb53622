// SPDX-License-Identifier: Apache-2.0
//
// Loads into all ranks of a job. The load ends alike on all of them.
#pragma once

#include <functional>

#include "trainer_hooks/load/load_through.h"
#include "varve/rank_group.h"

namespace varve::internal {

// Loads into this rank's `into` as LoadThrough does.
using LoadOne = std::function<Result<LoadReport>(const LoadOptions&, RegionReader*)>;

// It is collective. A tensor that one rank has is unexpected on no rank. If one rank sets
// LoadOptions::exchange, each chunk is read once for all ranks (exchange.h). If one rank has an
// error, all ranks return it, with the rank's name.
Result<LoadReport> LoadTogether(RankGroup* ranks, const LoadOptions& options,
                                const TrainingState& into, const LoadOne& load);

}  // namespace varve::internal
