// SPDX-License-Identifier: Apache-2.0
//
// The header of NumPy's .npy files. Functions are stateless.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "varve/tensor.h"

namespace varve::internal::formats {

// How NumPy sees a tensor. NumPy has no type for some of ours.
struct NpyType {
  std::string descr;           // e.g. "<f4"
  std::vector<int64_t> shape;  // the tensor's, or one axis of bytes for types smaller than a byte
  bool exact = true;           // false: the raw bits as unsigned integers
};

NpyType NpyTypeOf(DType dtype, std::span<const int64_t> shape);

// Returns magic, version and padded dictionary. The data follows in row-major order. The version is
// 1.0, or 2.0 when the shape is too long for it.
std::string BuildNpyHeader(const NpyType& type);

}  // namespace varve::internal::formats
