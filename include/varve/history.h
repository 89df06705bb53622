// SPDX-License-Identifier: Apache-2.0
//
// How tensors changed from step to step: what Store::Log and Store::Diff return. They compare chunk
// lists, and do not read a list that both steps name. All types here are plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace varve {

// A step at which a tensor differs from the step before it in the same run (or first appears).
struct TensorChange {
  uint64_t step = 0;
  uint64_t num_chunks = 0;      // in all shards of the tensor
  uint64_t changed_chunks = 0;  // with other bytes than before, or new
  uint64_t changed_bytes = 0;   // raw bytes of those
  uint64_t stored_bytes = 0;    // encoded bytes that this step's save stored for them
};

// How the elements of a tensor differ. Elements are compared by value as f64, except that two NaN
// are equal. Complex elements are compared part by part.
struct ValueDiff {
  uint64_t num_elements = 0;
  uint64_t changed_elements = 0;
  // max |b - a|. Infinite when a finite value became infinite or NaN.
  double max_abs = 0;
  // ||b - a|| / ||a||, Euclidean. Infinite when a is all zero and b is not.
  double relative_norm = 0;
};

struct TensorDiff {
  std::string name;
  uint32_t shard = 0;
  bool reshaped = false;  // other dtype or shape: all of it counts as changed
  uint64_t num_chunks = 0;
  uint64_t changed_chunks = 0;
  uint64_t changed_bytes = 0;       // raw bytes of those, in the later checkpoint
  std::optional<ValueDiff> values;  // when asked for, not reshaped, and elements are whole bytes
};

// Tensors are ordered by name, then shard. A name that has changed in one shard is not in
// `unchanged`. Shards that were cut in another way are compared as one tensor, whose chunks are
// then pieces of as many elements.
struct CheckpointDiff {
  std::vector<std::string> added;
  std::vector<std::string> removed;
  std::vector<TensorDiff> changed;
  std::vector<std::string> unchanged;
};

struct DiffOptions {
  // Which tensors to look at. Unset = all.
  std::function<bool(std::string_view name)> include;
  // True: reads the chunks that changed and compares their elements.
  bool values = false;
};

}  // namespace varve
