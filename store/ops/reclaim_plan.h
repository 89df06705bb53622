// SPDX-License-Identifier: Apache-2.0
//
// Decides which chunk files a reclaim deletes and which it rewrites. store/ops/reclaim.cc carries
// the plan out, and store/ops/drop_forecast.cc only reports it. All functions are stateless.
#pragma once

#include <cstdint>
#include <vector>

#include "store/db/dead_space.h"
#include "varve/store.h"

namespace varve::internal {

struct ReclaimPlan {
  std::vector<ChunkFile> deleted;
  std::vector<ChunkFile> rewritten;  // those that shrink to the least come first
};

// Returns the bytes of a file after its dead frames are removed.
uint64_t RestOf(const ChunkFile& file);

// Plans for those of `files` whose dead frames are worth a rewrite, or with `all` for every file
// with dead frames.
ReclaimPlan PlanReclaim(std::vector<ChunkFile> files, bool all);

// Returns the dead bytes that a reclaim without `all` would free now, and those that it would
// leave.
DropForecast ForecastReclaim(std::vector<ChunkFile> files);

}  // namespace varve::internal
