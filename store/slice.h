// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a row-major tensor make a slice: equally long runs, in rising order in the tensor
// and gap-free in the result. Pure arithmetic; the cost of finding the runs in a part of the tensor
// is logarithmic in their number. A plain value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "varve/result.h"
#include "varve/tensor.h"

namespace varve {

class SliceRuns {
 public:
  // kInvalidArgument: not one range an axis, a range outside its axis or reversed, or sub-byte
  // elements cut inside a byte. An empty `slice` is the whole tensor.
  static Result<SliceRuns> Make(DType dtype, std::span<const int64_t> shape,
                                std::span<const Range> slice);

  uint64_t num_runs() const { return num_runs_; }
  uint64_t run_bytes() const { return run_bytes_; }
  uint64_t total_bytes() const { return num_runs_ * run_bytes_; }
  // Byte offset of run `k` in the tensor; in the result it is at k * run_bytes().
  uint64_t Begin(uint64_t k) const;
  // The first run that ends after byte `offset` of the tensor; num_runs() when none does.
  uint64_t FirstRunAfter(uint64_t offset) const;

 private:
  struct Axis {
    uint64_t count;         // indices the slice takes
    uint64_t begin_bytes;   // offset of the first
    uint64_t stride_bytes;  // between neighbours
  };
  std::vector<Axis> outer_;  // axes that are walked, slowest first
  uint64_t num_runs_ = 0;
  uint64_t run_bytes_ = 0;
  uint64_t base_ = 0;  // offset of the innermost, contiguous part
};

}  // namespace varve
