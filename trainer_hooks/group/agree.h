// SPDX-License-Identifier: Apache-2.0
//
// One outcome on all ranks: each does its local part and then hears of the others'. The functions
// are collective; a rank alone agrees with itself.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "varve/checkpoint.h"
#include "varve/rank_group.h"
#include "varve/result.h"

namespace varve::internal {

// Ok when all ranks are. Else, on all of them, the error of the lowest rank that has one, named,
// and behind it those of other ranks that say something else.
Status Agree(RankGroup* ranks, const Status& mine);

// What rank 0 finds, or its error. The others' `find` is not called.
Result<std::string> FromRankZero(RankGroup* ranks,
                                 const std::function<Result<std::string>()>& find);

// The same of a step.
Result<CheckpointId> StepFromRankZero(RankGroup* ranks,
                                      const std::function<Result<CheckpointId>()>& find);

// kFailedPrecondition names two ranks and what they have when `mine` is not the same on all of
// them.
Status AgreeOnNumber(RankGroup* ranks, std::string_view what, uint64_t mine);

// True on all ranks when it is on one.
Result<bool> IsTrueOnAny(RankGroup* ranks, bool mine);

}  // namespace varve::internal
