// SPDX-License-Identifier: Apache-2.0
//
// What a replay predicts of its chunk. Functions are stateless.
#pragma once

#include <cstddef>
#include <span>

#include "base/cpu.h"
#include "codec/frame.h"

namespace varve::internal {

// Makes the prediction. `out` and the sources of the target have one size, and `gradient` has half
// of it for a moment. `out` overlaps no input.
void PredictReplay(const FrameReplay& replay, const FrameSourceBytes& sources,
                   std::span<const std::byte> gradient, std::span<std::byte> out, CpuLevel level);

// True when the prediction is exactly `raw`. It goes through memory once, and writes nothing there.
bool IsPredicted(const FrameReplay& replay, const FrameSourceBytes& sources,
                 std::span<const std::byte> gradient, std::span<const std::byte> raw,
                 CpuLevel level);

}  // namespace varve::internal
