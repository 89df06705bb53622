// SPDX-License-Identifier: Apache-2.0
//
// What slices and flat buffers have in common.
#pragma once

#include "varve/result.h"

namespace varve {

// Elements in the 256 bytes to which Paddle aligns on a GPU. kInvalidArgument: they do not divide.
Result<int64_t> AlignedElements(int64_t element_bytes);

}  // namespace varve
