// SPDX-License-Identifier: Apache-2.0
//
// The names that torch gives to types in its files, and which names its files may use. Stateless.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "varve/result.h"
#include "varve/tensor.h"

namespace varve::internal::formats {

// Before the name of each type of torch's own.
inline constexpr std::string_view kTorchPrefix = "torch.";

struct TorchType {
  std::string_view name;     // without "torch."
  std::string_view storage;  // the class of its storages, empty if it has none of its own
  DType dtype;               // of varve
  int64_t element_bytes;     // of torch
  // varve has no such type: its bytes are kept as those of `dtype`, and a reader must be told.
  bool is_other = false;

  // The shape in varve of a tensor. kInvalidArgument: a type of half bytes has no axis.
  Result<std::vector<int64_t>> ShapeOf(std::vector<int64_t> torch_shape) const;
};

// Null: varve cannot keep it, or torch has no such type. The first takes "float32", the second
// "FloatStorage".
const TorchType* FindTorchType(std::string_view name);
const TorchType* FindTorchStorage(std::string_view name);
// The type of a tensor of varve's. Null: torch has none.
const TorchType* TorchTypeOf(DType dtype);

// True for the classes and functions that torch.save writes for tensors, containers and plain
// values. What makes a tensor of anything else is not among them.
bool IsTorchGlobal(std::string_view name);

}  // namespace varve::internal::formats
