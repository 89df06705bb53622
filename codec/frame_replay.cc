// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_replay.h"

#include <algorithm>
#include <cstring>

namespace varve::internal {

void PredictReplay(const FrameReplay& replay, const FrameSourceBytes& sources,
                   std::span<const std::byte> gradient, std::span<std::byte> out, CpuLevel level) {
  const AdamRecipe& recipe = replay.recipe;
  switch (replay.target) {
    case ReplayTarget::kMoment:
      return PredictMoment(recipe, sources[0], gradient, out, level);
    case ReplayTarget::kSquare:
      return PredictSquare(recipe, sources[0], sources[1], sources[2], out, level);
    case ReplayTarget::kWeight:
      return PredictWeight(recipe, sources[0], sources[1], sources[2], out, level);
  }
}

bool IsPredicted(const FrameReplay& replay, const FrameSourceBytes& sources,
                 std::span<const std::byte> gradient, std::span<const std::byte> raw,
                 CpuLevel level) {
  constexpr size_t kRoundBytes = 4096;  // of each tensor. A round stays in the L1 cache
  alignas(64) std::byte room[kRoundBytes];
  for (size_t at = 0; at < raw.size(); at += kRoundBytes) {
    const size_t bytes = std::min(kRoundBytes, raw.size() - at);
    FrameSourceBytes round;
    for (size_t i = 0; i < NumSources(replay.target); ++i) {
      round[i] = sources[i].subspan(at, bytes);
    }
    const bool has_gradient = replay.target == ReplayTarget::kMoment;
    PredictReplay(replay, round,
                  has_gradient ? gradient.subspan(at / 2, bytes / 2) : std::span<const std::byte>(),
                  std::span(room, bytes), level);
    if (std::memcmp(room, raw.data() + at, bytes) != 0) return false;
  }
  return true;
}

}  // namespace varve::internal
