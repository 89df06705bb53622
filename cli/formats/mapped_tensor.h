// SPDX-License-Identifier: Apache-2.0
//
// A tensor in a mapped file, as every reader of files hands it on. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "varve/tensor.h"

namespace varve::formats {

struct MappedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // lives as long as the files it is of
  uint32_t shard = 0;
};

}  // namespace varve::formats
