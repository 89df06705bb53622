// SPDX-License-Identifier: Apache-2.0
//
// Elements of a strided tensor, in row-major order. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace varve::internal {

// True when these strides, in elements, are those of dense row-major order. Empty means dense.
bool IsDense(std::span<const int64_t> shape, std::span<const int64_t> strides);

// Copies `count` elements, from element `first` of the row-major order on, to `out`. `data` is the
// element at index 0 of every axis. Strides are in elements. Precondition: there is at least one
// axis, and `shape` has at least `first + count` elements.
void Gather(std::span<const int64_t> shape, std::span<const int64_t> strides, const std::byte* data,
            uint64_t first, uint64_t count, size_t element_bytes, std::byte* out);

}  // namespace varve::internal
