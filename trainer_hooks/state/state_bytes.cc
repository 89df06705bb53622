// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/state_bytes.h"

#include <algorithm>
#include <map>

namespace varve::internal {

uint64_t StateBytes(std::span<const StateTensor> tensors) {
  std::map<const void*, uint64_t> bytes;
  for (const StateTensor& tensor : tensors) {
    const Result<uint64_t> size = NumBytes(tensor.dtype, tensor.shape);
    uint64_t& largest = bytes[tensor.data];
    if (size.ok()) largest = std::max(largest, *size);
  }
  uint64_t sum = 0;
  for (const auto& [data, size] : bytes) sum += size;
  return sum;
}

}  // namespace varve::internal
