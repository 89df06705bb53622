// SPDX-License-Identifier: Apache-2.0
#include "cli/foreign/strided_bytes.h"

#include <utility>

#include "store/shards/strides.h"

namespace varve::internal::cli {

std::vector<int64_t> FortranStrides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

std::shared_ptr<formats::TensorBytes> MakeStridedBytes(std::vector<int64_t> shape,
                                                       std::vector<int64_t> strides,
                                                       size_t element_bytes, uint64_t num_bytes,
                                                       ReadSpan read,
                                                       formats::MadeBytes::Check check) {
  const auto make = [shape = std::move(shape), strides = std::move(strides), element_bytes,
                     read = std::move(read)](std::span<std::byte> all) {
    if (all.empty() || IsDense(shape, strides)) return read(all);
    uint64_t last = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      last += static_cast<uint64_t>(shape[i] - 1) * static_cast<uint64_t>(strides[i]);
    }
    std::vector<std::byte> memory((last + 1) * element_bytes);
    VARVE_RETURN_IF_ERROR(read(memory));
    Strides(shape, strides).Gather(memory.data(), element_bytes, 0, all);
    return Status::Ok();
  };
  return std::make_shared<formats::MadeBytes>(num_bytes, make, std::move(check));
}

}  // namespace varve::internal::cli
