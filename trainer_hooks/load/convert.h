// SPDX-License-Identifier: Apache-2.0
//
// Converts elements between floating types. Widening is exact, and keeps NaNs bit for bit.
// Narrowing rounds to nearest, ties to even. A value that is too large becomes infinity, or NaN in
// F8_E4M3, which has no infinity. A narrowed NaN keeps its sign and the high bits of its payload
// and is made quiet. BF16 has one NaN, 0x7FC0, and F8_E4M3 has one of each sign.
// codec/predict/rounded_copy.h has the same rule, so a load makes from a master exactly what the
// store derives from it. Functions are stateless.
#pragma once

#include <cstddef>
#include <span>

#include "varve/tensor.h"

namespace varve::internal {

// True when both are one of F64, F32, BF16, F16, F8_E4M3 and F8_E5M2.
bool CanConvert(DType from, DType to);

// Preconditions: CanConvert(from, to), or both are the same, which copies. Both spans hold equally
// many elements and do not overlap.
void Convert(DType from, std::span<const std::byte> source, DType to, std::span<std::byte> target);

}  // namespace varve::internal
