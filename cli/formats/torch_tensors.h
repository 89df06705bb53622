// SPDX-License-Identifier: Apache-2.0
//
// Tensors as torch.save pickles them: a call that names a storage and says where in it the elements
// lie. Nothing is called. Stateless.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/pickle.h"
#include "cli/formats/torch_types.h"
#include "varve/result.h"

namespace varve::internal::formats {

struct TorchTensor {
  const TorchType* type = nullptr;
  // In elements of torch.
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  // Where the first element is in its storage, and where the last one ends, in bytes.
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t num_bytes = 0;      // dense
  std::string_view storage;    // the key of the storage
  std::string_view device;     // "cpu", "cuda:0"
  uint64_t storage_bytes = 0;  // as the pickle says it

  bool operator==(const TorchTensor&) const = default;
  // True when the elements lie in row-major order without gaps.
  bool IsContiguous() const;
  // True when they lie without gaps and each has a place of its own, in whatever order of the axes.
  bool IsDense() const;
  // True when two elements may have one place.
  bool HasOverlap() const;
};

// True for what torch.save writes for a tensor or parameter.
bool IsTorchTensor(const Pickle& pickle, PickleId id);

// Reads one. kInvalidArgument names the offset, what was found and what was expected: the elements
// do not lie in the storage, a number is negative or overflows, or the tensor is a view that
// negates or conjugates.
Result<TorchTensor> ReadTorchTensor(const Pickle& pickle, PickleId id);

}  // namespace varve::internal::formats
