// SPDX-License-Identifier: Apache-2.0
#include "store/ops/reclaim_plan.h"

#include <algorithm>
#include <utility>

namespace varve::internal {

namespace {

// The bytes that a reclaim may rewrite beyond what it frees. With it, a store of no more than this
// size never keeps more than a seventh of it as garbage, however its files are merged.
constexpr uint64_t kRewriteAllowance = 16 << 20;

}  // namespace

uint64_t RestOf(const ChunkFile& file) {
  return file.bytes - std::min(file.bytes, file.DeadBytes());
}

// Rewrites in all no more than it frees plus the allowance, and no file for less than an eighth of
// it.
ReclaimPlan PlanReclaim(std::vector<ChunkFile> files, bool all) {
  ReclaimPlan plan;
  uint64_t freed = 0, rewritten = 0;
  std::erase_if(files, [](const ChunkFile& file) { return !file.HasDead(); });
  std::stable_sort(files.begin(), files.end(), [](const ChunkFile& a, const ChunkFile& b) {
    return static_cast<double>(a.DeadBytes()) / static_cast<double>(a.bytes) >
           static_cast<double>(b.DeadBytes()) / static_cast<double>(b.bytes);
  });
  const auto is_worth_it = [&](const ChunkFile& file) {
    return file.DeadBytes() >= file.bytes / 8 &&
           rewritten + RestOf(file) <= freed + file.DeadBytes() + kRewriteAllowance;
  };
  for (ChunkFile& file : files) {
    const bool is_dead = file.live_frames == 0;
    if (!is_dead && !all && !is_worth_it(file)) continue;
    freed += file.DeadBytes();
    if (!is_dead) rewritten += RestOf(file);
    (is_dead ? plan.deleted : plan.rewritten).push_back(std::move(file));
  }
  std::stable_sort(plan.rewritten.begin(), plan.rewritten.end(),
                   [](const ChunkFile& a, const ChunkFile& b) { return RestOf(a) < RestOf(b); });
  return plan;
}

DropForecast ForecastReclaim(std::vector<ChunkFile> files) {
  uint64_t dead = 0;
  for (const ChunkFile& file : files) dead += file.DeadBytes();
  DropForecast forecast;
  const ReclaimPlan plan = PlanReclaim(std::move(files), /*all=*/false);
  for (const ChunkFile& file : plan.deleted) forecast.freed_now += file.DeadBytes();
  for (const ChunkFile& file : plan.rewritten) forecast.freed_now += file.DeadBytes();
  forecast.freed_later = dead - forecast.freed_now;
  return forecast;
}

}  // namespace varve::internal
