// SPDX-License-Identifier: Apache-2.0
//
// Whether layouts of one tensor are disjoint, and how many elements they hold together, without
// comparing each pair of them. The layouts of real jobs are grids: parts that differ on one axis
// only are joined, axis by axis, until one part is left or none fits another. The cost is n log n
// for n layouts that join; those that do not join are compared by pairs. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "varve/shard_layout.h"

namespace varve {

// For each layout the index of the first that is equal to it, which may be itself.
std::vector<size_t> FindOriginals(std::span<const ShardLayout* const> layouts);

// The elements that all hold together when no two have one in common; else nothing. The layouts are
// valid, canonical, of one global shape, and no two are equal.
std::optional<int64_t> CountDisjoint(std::span<const ShardLayout* const> layouts);

}  // namespace varve
