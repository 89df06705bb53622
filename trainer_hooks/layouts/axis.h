// SPDX-License-Identifier: Apache-2.0
//
// What all functions that cut an axis share.
#pragma once

#include <string>
#include <vector>

#include "varve/layouts.h"

namespace varve::internal {

// "rank 4 of 4": kInvalidArgument unless 0 <= rank < ranks.
Status ValidateRank(RankOf group);
// Checks that the layout is valid and has no flat range yet.
Status ValidateUncut(const ShardLayout& layout);
// Does both checks, and checks that the layout has that axis.
Status ValidateSplit(const ShardLayout& layout, size_t axis, RankOf group);
// kInvalidArgument "WHAT, expected a multiple of 4 ranks" unless it is one.
Status ExpectMultiple(const std::string& what, int64_t size, RankOf group);

// Keeps `pieces` of an axis. Their ranges are local indices of `segments`, and their padding is
// new.
std::vector<Segment> TakePieces(const std::vector<Segment>& segments,
                                const std::vector<Segment>& pieces);
// Returns `layout` with that axis cut to `pieces`.
Result<ShardLayout> Take(ShardLayout layout, size_t axis, const std::vector<Segment>& pieces);

}  // namespace varve::internal
