// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "varve/tensor.h"

namespace varve::internal::testing {

// The == of vectors compares one byte after the other, and sanitizers look at each.
inline bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

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
