// SPDX-License-Identifier: Apache-2.0
//
// The layout of a dtype's bits, as far as prediction needs it. Functions are stateless.
#pragma once

#include <cstddef>
#include <optional>

#include "codec/planes/class_kernel.h"
#include "varve/tensor.h"

namespace varve::internal {

inline constexpr size_t kMaxPlanes = 8;

// Size in bytes of the unit that is split into planes. It is the element, or one byte for elements
// that are smaller than a byte. A complex element is two F32.
inline size_t UnitBytes(DType dtype) {
  if (dtype == DType::kC64) return 4;
  const int bits = DTypeBits(dtype);
  return bits <= 8 ? 1 : static_cast<size_t>(bits / 8);
}

// True for floats with a sign in the top bit of the unit.
inline bool IsSignedFloat(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
    case DType::kC64:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return true;
    default:
      return false;
  }
}

// Where the exponent lies, for dtypes whose deltas use it as context.
inline std::optional<ExponentField> ContextField(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return ExponentField{.element_bytes = 2, .shift = 7, .mask = 0xFF};
    case DType::kF16:
      return ExponentField{.element_bytes = 2, .shift = 10, .mask = 0x1F};
    case DType::kF32:
      return ExponentField{.element_bytes = 4, .shift = 23, .mask = 0xFF};
    default:
      return std::nullopt;
  }
}

}  // namespace varve::internal
