// SPDX-License-Identifier: Apache-2.0
//
// Gives all ranks one outcome. Each rank does its local part, and then hears how it went on the
// others. The functions are collective. If there is only one rank, it agrees with itself.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "varve/checkpoint.h"
#include "varve/rank_group.h"
#include "varve/result.h"

namespace varve::internal {

// Returns ok if all ranks are ok. Otherwise all ranks return the error of the lowest rank that has
// one. It names that rank, and then the errors of other ranks that say something else.
Status Agree(RankGroup* ranks, const Status& mine);

// Returns what rank 0 finds, or its error. `find` of the other ranks is not called.
Result<std::string> FromRankZero(RankGroup* ranks,
                                 const std::function<Result<std::string>()>& find);

// The same for a step.
Result<CheckpointId> StepFromRankZero(RankGroup* ranks,
                                      const std::function<Result<CheckpointId>()>& find);

// kFailedPrecondition: `mine` is not the same on all ranks. The message names two ranks and what
// they have.
Status AgreeOnNumber(RankGroup* ranks, std::string_view what, uint64_t mine);

// Returns true on all ranks if `mine` is true on one of them.
Result<bool> IsTrueOnAny(RankGroup* ranks, bool mine);

}  // namespace varve::internal
