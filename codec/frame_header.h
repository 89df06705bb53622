// SPDX-License-Identifier: Apache-2.0
//
// The header of a frame: 32 bytes, or 72 when the frame has a base. docs/frame.md draws it.
// Functions are stateless.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "codec/frame.h"
#include "varve/result.h"

namespace varve::internal {

inline constexpr size_t kPlainHeaderBytes = 32;
inline constexpr size_t kBaseHeaderBytes = 72;

inline constexpr bool HasBase(Predictor predictor) {
  return predictor == Predictor::kDelta || predictor == Predictor::kScaledDelta;
}
inline constexpr size_t HeaderBytes(Predictor predictor) {
  return HasBase(predictor) ? kBaseHeaderBytes : kPlainHeaderBytes;
}

// Writes HeaderBytes(info.predictor) bytes to the front of `out`. It stores info.depth and
// info.path_bytes only for frames with a base. Others have depth 1 and their own size.
void WriteHeader(const FrameInfo& info, std::span<std::byte> out);

}  // namespace varve::internal
