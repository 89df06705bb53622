// SPDX-License-Identifier: Apache-2.0
//
// Copies between strided places in memory. Slices, reshards and strided tensors of a trainer share
// these loops. Short runs and single elements are copied by loops of a fixed size, because a call
// of memcpy for each costs more than copying the bytes. Pure functions.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace varve::internal {

// Copies `count` runs of `bytes` each. A step is the distance in bytes from a run to the next.
void CopyRuns(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
              size_t bytes, int64_t count);

// An axis of a strided tensor. The stride is in elements.
struct StridedAxis {
  int64_t size = 0;
  int64_t stride = 0;
  auto operator<=>(const StridedAxis&) const = default;
};

// Returns the axes of a tensor, slowest first. Neighbours that can be walked as one axis are
// joined, and axes of size 1 are left out. Empty `strides` means dense row-major. A tensor of at
// most one element has no axes.
std::vector<StridedAxis> JoinAxes(std::span<const int64_t> shape, std::span<const int64_t> strides);

// Copies elements to or from dense bytes. They are counted in row-major order from `first` on.
// `base` is element 0 of every axis. Precondition: `dense` holds whole elements, and the tensor has
// at least as many from `first` on.
void GatherElements(std::span<const StridedAxis> axes, const std::byte* base, size_t element_bytes,
                    int64_t first, std::span<std::byte> dense);
void ScatterElements(std::span<const StridedAxis> axes, std::span<const std::byte> dense,
                     size_t element_bytes, int64_t first, std::byte* base);

}  // namespace varve::internal
