// SPDX-License-Identifier: Apache-2.0
//
// The header of a frame: 32 bytes, 72 for deltas, and 116 or 172 for replays. docs/frame.md draws
// it. Functions are stateless.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "codec/frame.h"
#include "varve/result.h"

namespace varve::internal {

inline constexpr size_t kPlainHeaderBytes = 32;
inline constexpr size_t kBaseHeaderBytes = 72;
inline constexpr size_t ReplayHeaderBytes(ReplayTarget target) {
  return 88 + 28 * NumSources(target);
}
inline constexpr size_t kMaxHeaderBytes = ReplayHeaderBytes(ReplayTarget::kWeight);

// True when the planes are those of a difference to a prediction.
inline constexpr bool HasSources(Predictor predictor) {
  return predictor >= Predictor::kDelta && predictor <= Predictor::kReplay;
}
inline size_t HeaderBytes(const FrameInfo& info) {
  if (info.replay.has_value()) return ReplayHeaderBytes(info.replay->target);
  return HasSources(info.predictor) ? kBaseHeaderBytes : kPlainHeaderBytes;
}

// Writes HeaderBytes(info) bytes to the front of `out`. It stores info.depth and info.path_bytes
// only for frames with sources. Others have depth 1 and their own size.
void WriteHeader(const FrameInfo& info, std::span<std::byte> out);

}  // namespace varve::internal
