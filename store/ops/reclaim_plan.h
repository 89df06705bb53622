// SPDX-License-Identifier: Apache-2.0
//
// Which chunk files a reclaim deletes and which it rewrites: a pure decision. store/ops/reclaim.cc
// does it, store/ops/drop_forecast.cc only tells of it. All functions are stateless.
#pragma once

#include <cstdint>
#include <vector>

#include "store/db/dead_space.h"
#include "varve/store.h"

namespace varve {

struct ReclaimPlan {
  std::vector<ChunkFile> deleted;
  std::vector<ChunkFile> rewritten;  // the smallest rest first
};

// Bytes that a file has when its dead frames are gone.
uint64_t RestOf(const ChunkFile& file);

// Of `files`, those with dead frames that are worth it; with `all`, all that have any.
ReclaimPlan PlanReclaim(std::vector<ChunkFile> files, bool all);

// The dead bytes that a reclaim without `all` gives back now, and those that it leaves.
DropForecast ForecastReclaim(std::vector<ChunkFile> files);

}  // namespace varve
