// SPDX-License-Identifier: Apache-2.0
#include "store/shards/gather.h"

#include "store/shards/strided_copy.h"

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

void Gather(std::span<const int64_t> shape, std::span<const int64_t> strides, const std::byte* data,
            uint64_t first, uint64_t count, size_t element_bytes, std::byte* out) {
  GatherElements(JoinAxes(shape, strides), data, element_bytes, static_cast<int64_t>(first),
                 {out, static_cast<size_t>(count) * element_bytes});
}

}  // namespace varve::internal
