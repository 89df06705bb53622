// SPDX-License-Identifier: Apache-2.0
//
// The results of Store::Log and Store::Diff, which say how tensors changed from step to step. Log
// compares the digests of chunks, and reads no tensor data. Diff does the same for a tensor that
// both checkpoints cut alike. Lists of digests that both steps share are not read. Diff compares a
// tensor that was cut in different ways byte by byte. All types here are plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace varve {

// A step at which a tensor differs from what it was at the step before, or first appears.
struct TensorChange {
  uint64_t step = 0;
  uint64_t num_chunks = 0;      // in all shards of the tensor
  uint64_t changed_chunks = 0;  // chunks with other bytes than before, and new chunks
  uint64_t changed_bytes = 0;   // raw bytes of the changed chunks
  uint64_t stored_bytes = 0;    // encoded bytes that this step's save stored for them
};

// Says how the elements of a tensor differ between an earlier tensor a and a later tensor b.
// Elements are compared by value. Integers are compared exactly, without rounding to f64. Two NaN
// are equal. The sizes of the differences are computed as f64. Complex elements are compared part
// by part.
struct ValueDiff {
  uint64_t num_elements = 0;
  uint64_t changed_elements = 0;
  // The maximum of |b - a|. Infinite when an element that has changed is infinite or NaN in a or b.
  double max_abs = 0;
  // ||b - a|| / ||a||, with Euclidean norms. Infinite when a is all zero and b is not, or when the
  // quotient is NaN.
  double relative_norm = 0;
  uint64_t new_nans = 0;  // elements that are NaN in b and not in a. Complex: in either part
};

struct TensorDiff {
  std::string name;
  uint32_t shard = 0;
  // True: the shard was not compared. Its dtype, its shape or the shape of its global tensor
  // differs, or only one of the checkpoints has the shard. All its chunks count as changed. If only
  // the earlier checkpoint has the shard, no chunk is counted. `reshaped` is false for a tensor
  // that was only cut in another way (see CheckpointDiff).
  bool reshaped = false;
  uint64_t num_chunks = 0;
  uint64_t changed_chunks = 0;
  uint64_t changed_bytes = 0;  // raw bytes of the changed chunks, in the later checkpoint
  // Set if DiffOptions::values is true, `reshaped` is false, and the dtype has at least one byte
  // for each element.
  std::optional<ValueDiff> values;
};

// Lists the tensors of two checkpoints, ordered by name, then shard. If any shard of a tensor has
// changed, `changed` has an entry for each such shard, and the tensor is not in `unchanged`. A
// tensor that the two checkpoints cut in different ways is compared as one global tensor.
// Its TensorDiff::shard is 0. Its chunk counts are of the global tensor cut into chunks.
struct CheckpointDiff {
  std::vector<std::string> added;
  std::vector<std::string> removed;
  std::vector<TensorDiff> changed;
  std::vector<std::string> unchanged;
};

struct DiffOptions {
  // Says whether to look at a tensor. Unset = look at all tensors.
  std::function<bool(std::string_view name)> include;
  // True: reads the tensors that changed and compares their elements (TensorDiff::values).
  bool values = false;
};

}  // namespace varve
