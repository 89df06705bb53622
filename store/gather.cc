// SPDX-License-Identifier: Apache-2.0
#include "store/gather.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace varve {

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
  const size_t axes = shape.size();
  std::vector<int64_t> index(axes);
  uint64_t rest = first;
  int64_t offset = 0;
  for (size_t i = axes; i-- > 0;) {
    index[i] = static_cast<int64_t>(rest % static_cast<uint64_t>(shape[i]));
    rest /= static_cast<uint64_t>(shape[i]);
    offset += index[i] * strides[i];
  }
  const int64_t row = shape.back();
  const int64_t step = strides.back();
  while (count > 0) {
    const int64_t n = std::min<int64_t>(row - index.back(), static_cast<int64_t>(count));
    const std::byte* in = data + offset * static_cast<int64_t>(element_bytes);
    if (step == 1) {
      std::memcpy(out, in, static_cast<size_t>(n) * element_bytes);
    } else {
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(out + static_cast<size_t>(i) * element_bytes,
                    in + i * step * static_cast<int64_t>(element_bytes), element_bytes);
      }
    }
    out += static_cast<size_t>(n) * element_bytes;
    count -= static_cast<uint64_t>(n);
    // On to the next row: the innermost index starts again, the others count up.
    offset -= index.back() * step;
    index.back() = 0;
    for (size_t i = axes - 1; i-- > 0;) {
      offset += strides[i];
      if (++index[i] < shape[i]) break;
      offset -= index[i] * strides[i];
      index[i] = 0;
    }
  }
}

}  // namespace varve
