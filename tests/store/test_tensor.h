// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "varve/tensor.h"

namespace varve::internal::testing {

// A tensor that a test owns.
struct TestTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  std::string derived_from;

  TensorView view() const {
    return {.name = name,
            .dtype = dtype,
            .shape = shape,
            .data = bytes.data(),
            .derived_from = derived_from};
  }
};

}  // namespace varve::internal::testing
