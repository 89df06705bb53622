// SPDX-License-Identifier: Apache-2.0
//
// Residuals are what is split into planes. In keyframes that is the element with its sign moved to
// the low end, in deltas its zigzag distance to a base. All are bijections of the bits, so every
// pattern survives. Every level gives the same bytes. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace varve::internal {

// How an element becomes a residual. The number is on disk, in the payload's first byte: never
// renumber.
enum class Transform : uint8_t {
  kPlain = 0,          // the bits themselves
  kRotate = 1,         // rotated left by one: the sign becomes the lowest bit
  kSubtract = 2,       // zigzag(x - base), as integers
  kSubtractOrd = 3,    // zigzag(ord(x) - ord(base)), ord = total order of the floats
  kSubtractScale = 4,  // zigzag(ord(x) - ord(scale * base)), F32 only
  kNone = 5            // there is no residual: each element is the base's. Replays only
};

// Element sizes are 1, 2, 4 or 8 bytes. Only the subtracting transforms use `base`, and only
// kSubtractScale uses `scale`, which is finite and positive. Input and output must not overlap.
struct TransformArgs {
  Transform transform = Transform::kPlain;
  size_t element_bytes = 1;
  float scale = 1.0f;
};
void ForwardTransform(CpuLevel level, const TransformArgs& args, const uint8_t* in,
                      const uint8_t* base, size_t num_elements, uint8_t* out);
void InverseTransform(CpuLevel level, const TransformArgs& args, const uint8_t* in,
                      const uint8_t* base, size_t num_elements, uint8_t* out);

}  // namespace varve::internal
