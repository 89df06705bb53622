// SPDX-License-Identifier: Apache-2.0
//
// Converts elements between floating types. Widening is exact, NaNs bit for bit. Narrowing rounds
// to nearest, ties to even; what is too large becomes infinity, or NaN in F8_E4M3, which has none.
// A NaN that is narrowed keeps its sign and the high bits of its payload and is made quiet; BF16
// has one, 0x7FC0, and F8_E4M3 one of each sign. This is the rule of codec/predict/rounded_copy.h,
// so that what a load makes from a master is what the store derives from it. Functions are
// stateless.
#pragma once

#include <cstddef>
#include <span>

#include "varve/tensor.h"

namespace varve {

// True when both are of F64, F32, BF16, F16, F8_E4M3 and F8_E5M2.
bool CanConvert(DType from, DType to);

// Preconditions: CanConvert(from, to), or both are the same, which copies; both spans hold equally
// many elements and do not overlap.
void Convert(DType from, std::span<const std::byte> source, DType to, std::span<std::byte> target);

}  // namespace varve
