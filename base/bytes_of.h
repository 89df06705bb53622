// SPDX-License-Identifier: Apache-2.0
//
// How many bytes elements take. A pure function.
#pragma once

#include <cstddef>

#include "varve/tensor.h"

namespace varve::internal {

// Returns the bytes of so many elements. Precondition: they are whole bytes.
template <typename Integer>
size_t BytesOf(DType dtype, Integer elements) {
  return static_cast<size_t>(elements) * static_cast<size_t>(DTypeBits(dtype)) / 8;
}

}  // namespace varve::internal
