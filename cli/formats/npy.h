// SPDX-License-Identifier: Apache-2.0
//
// The header of NumPy's .npy files, built and parsed. Parsing takes hostile files. Functions are
// stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "varve/result.h"
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

// The bytes at the start of a file that tell how long its header is.
inline constexpr size_t kNpyStartBytes = 12;

// An array as the header of its file says it, which is without a name.
struct NpyArray : TensorSpec {
  bool is_fortran = false;  // the first axis is the fastest
  uint64_t num_bytes = 0;   // of the data
};

// Returns the bytes before the data, from the first kNpyStartBytes of a file. kInvalidArgument: it
// is no .npy file of version 1 to 3, or its header is too long to be one.
Result<uint64_t> NpyHeaderBytes(std::span<const std::byte> start);
// Reads a whole header. kInvalidArgument names the offset, or the type that varve does not have,
// such as Python objects, which are pickled, and big-endian numbers.
Result<NpyArray> ParseNpyHeader(std::span<const std::byte> header);

}  // namespace varve::internal::formats
