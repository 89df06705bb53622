// SPDX-License-Identifier: Apache-2.0
//
// Bytes of tensors that a file keeps in another order of the elements. Functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cli/formats/tensor_bytes.h"
#include "varve/result.h"

namespace varve::internal::cli {

// Reads all bytes that a tensor spans in its file, from its first element to its last in memory.
using ReadSpan = std::function<Status(std::span<std::byte> out)>;

// The strides, in elements, of a tensor whose first axis is the fastest.
std::vector<int64_t> FortranStrides(std::span<const int64_t> shape);

// Makes a tensor whole in memory: reads its span, then puts the elements into row-major order. The
// strides are in elements of `element_bytes`, and empty ones mean that the order is that already.
// Precondition: no stride is negative, and span and tensor have sizes that are known not to
// overflow. `num_bytes` is that of the tensor.
std::shared_ptr<formats::TensorBytes> MakeStridedBytes(std::vector<int64_t> shape,
                                                       std::vector<int64_t> strides,
                                                       size_t element_bytes, uint64_t num_bytes,
                                                       ReadSpan read,
                                                       formats::MadeBytes::Check check);

}  // namespace varve::internal::cli
