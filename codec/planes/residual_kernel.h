// SPDX-License-Identifier: Apache-2.0
//
// What is split into planes: the element with its sign moved to the low end (keyframes), or its
// zigzag distance to a base (deltas). All are bijections of the bits, so every pattern survives.
// Every level gives the same bytes. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace varve {

// How an element becomes a residual. On disk, in the payload's first byte; never renumber.
enum class Transform : uint8_t {
  kPlain = 0,         // the bits themselves
  kRotate = 1,        // rotated left by one: the sign becomes the lowest bit
  kSubtract = 2,      // zigzag(x - base), as integers
  kSubtractOrd = 3,   // zigzag(ord(x) - ord(base)), ord = total order of the floats
  kSubtractScale = 4  // zigzag(ord(x) - ord(scale * base)), F32 only
};

// Element sizes are 1, 2, 4 or 8 bytes. `base` is used by the subtracting transforms, `scale`
// (finite, positive) by kSubtractScale. In and out must not overlap.
struct TransformArgs {
  Transform transform = Transform::kPlain;
  size_t element_bytes = 1;
  float scale = 1.0f;
};
void ForwardTransform(CpuLevel level, const TransformArgs& args, const uint8_t* in,
                      const uint8_t* base, size_t num_elements, uint8_t* out);
void InverseTransform(CpuLevel level, const TransformArgs& args, const uint8_t* in,
                      const uint8_t* base, size_t num_elements, uint8_t* out);

}  // namespace varve
