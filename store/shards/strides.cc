// SPDX-License-Identifier: Apache-2.0
#include "store/shards/strides.h"

#include <algorithm>

#include "base/bytes_of.h"

namespace varve::internal {

bool IsDense(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  if (strides.empty()) return true;
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

std::span<const std::byte> DenseBytes(const TensorView& tensor, uint64_t offset, uint64_t num_bytes,
                                      std::vector<std::byte>* gathered) {
  const auto* const data = static_cast<const std::byte*>(tensor.data);
  if (IsDense(tensor.shape, tensor.strides)) return {data + offset, num_bytes};
  const size_t element_bytes = BytesOf(tensor.dtype, 1);
  gathered->resize(num_bytes);
  Strides(tensor.shape, tensor.strides)
      .Gather(data, element_bytes, static_cast<int64_t>(offset / element_bytes), *gathered);
  return *gathered;
}

Strides::Strides(std::span<const int64_t> shape, std::span<const int64_t> strides)
    : axes_(JoinAxes(shape, strides)) {}

bool Strides::IsDense() const {
  return axes_.empty() || (axes_.size() == 1 && axes_[0].stride == 1);
}

bool Strides::HasZero() const {
  return std::any_of(axes_.begin(), axes_.end(),
                     [](const StridedAxis& axis) { return axis.stride == 0; });
}

void Strides::Scatter(std::span<const std::byte> dense, size_t element_bytes, int64_t first,
                      std::byte* base) const {
  ScatterElements(axes_, dense, element_bytes, first, base);
}

void Strides::Gather(const std::byte* base, size_t element_bytes, int64_t first,
                     std::span<std::byte> dense) const {
  GatherElements(axes_, base, element_bytes, first, dense);
}

}  // namespace varve::internal
