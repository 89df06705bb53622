// SPDX-License-Identifier: Apache-2.0
//
// What slices and flat buffers share.
#pragma once

#include "varve/result.h"

namespace varve::internal {

// Returns the number of elements in 256 bytes, to which Paddle aligns on a GPU. kInvalidArgument:
// 256 is not a multiple of the element's bytes.
Result<int64_t> AlignedElements(int64_t element_bytes);

}  // namespace varve::internal
