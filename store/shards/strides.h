// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of a strided tensor lie, and copies between it and dense bytes. Elements are
// counted in row-major order. Plain values. Functions are stateless.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "store/shards/strided_copy.h"
#include "varve/tensor.h"

namespace varve::internal {

// True when these strides, in elements, are those of dense row-major order. Empty means dense.
bool IsDense(std::span<const int64_t> shape, std::span<const int64_t> strides);

// Returns `num_bytes` bytes of a tensor from `offset` on, in row-major order. A dense tensor has
// them where they lie. Those of any other tensor are gathered into `*gathered`. Precondition: they
// are whole elements of the tensor.
std::span<const std::byte> DenseBytes(const TensorView& tensor, uint64_t offset, uint64_t num_bytes,
                                      std::vector<std::byte>* gathered);

// The axes of a tensor. Axes that can be walked as one are joined, so that equal places have equal
// strides, however they are written.
class Strides {
 public:
  // Empty `strides` means dense row-major. Otherwise there is one stride an axis, in elements.
  // Precondition: the shape has a number of elements (NumElements).
  Strides(std::span<const int64_t> shape, std::span<const int64_t> strides);

  bool IsDense() const;
  // True when two elements share a place because a stride is zero.
  bool HasZero() const;
  auto operator<=>(const Strides&) const = default;

  // Copies dense bytes to the elements from `first` on, and back. `base` is element 0.
  // Precondition: elements are whole bytes, and the tensor has enough of them.
  void Scatter(std::span<const std::byte> dense, size_t element_bytes, int64_t first,
               std::byte* base) const;
  void Gather(const std::byte* base, size_t element_bytes, int64_t first,
              std::span<std::byte> dense) const;

 private:
  std::vector<StridedAxis> axes_;  // slowest first. A tensor of at most one element has none
};

}  // namespace varve::internal
