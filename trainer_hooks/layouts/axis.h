// SPDX-License-Identifier: Apache-2.0
//
// What all functions that cut an axis have in common.
#pragma once

#include <string>
#include <vector>

#include "varve/layouts.h"

namespace varve {

// "rank 4 of 4": kInvalidArgument unless 0 <= rank < ranks.
Status ValidateRank(RankOf group);
// The layout is valid and has no flat range yet.
Status ValidateUncut(const ShardLayout& layout);
// Both, and the layout has that axis.
Status ValidateSplit(const ShardLayout& layout, size_t axis, RankOf group);
// kInvalidArgument "WHAT, expected a multiple of 4 ranks" unless it is one.
Status ExpectMultiple(const std::string& what, int64_t size, RankOf group);

int64_t AxisLength(const std::vector<Segment>& segments);
// Keeps `pieces` of an axis: their ranges are local indices of `segments`, their padding is new.
std::vector<Segment> TakePieces(const std::vector<Segment>& segments,
                                const std::vector<Segment>& pieces);
// `layout` with that axis cut to `pieces`.
Result<ShardLayout> Take(ShardLayout layout, size_t axis, const std::vector<Segment>& pieces);

}  // namespace varve
