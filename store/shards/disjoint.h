// SPDX-License-Identifier: Apache-2.0
//
// Tells whether layouts of one tensor are disjoint, and how many elements they hold together,
// without comparing each pair. The layouts of real jobs are grids. Parts that differ on one axis
// only are joined, axis by axis, until one part is left or no two fit. For n layouts that join, the
// cost is n log n. Layouts that do not join are compared by pairs. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "varve/shard_layout.h"

namespace varve::internal {

// Returns for each layout the index of the first equal one, which may be itself.
std::vector<size_t> FindOriginals(std::span<const ShardLayout* const> layouts);

// Returns the number of elements that all hold together, or nothing when two layouts have one in
// common. The layouts must be valid and canonical, of one global shape, and no two equal.
std::optional<int64_t> CountDisjoint(std::span<const ShardLayout* const> layouts);

}  // namespace varve::internal
