// SPDX-License-Identifier: Apache-2.0
#include "store/slice.h"

#include <string>

namespace varve {
namespace {

Status CheckRanges(std::span<const int64_t> shape, std::span<const Range> slice) {
  if (slice.size() != shape.size()) {
    return Status::InvalidArgument("the slice has " + std::to_string(slice.size()) +
                                   " ranges, the tensor " + std::to_string(shape.size()) + " axes");
  }
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const Range& r = slice[axis];
    if (r.begin < 0 || r.begin > r.end || r.end > shape[axis]) {
      return Status::InvalidArgument("slice " + std::to_string(r.begin) + ":" +
                                     std::to_string(r.end) + " of axis " + std::to_string(axis) +
                                     ", which has " + std::to_string(shape[axis]) + " indices");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<SliceRuns> SliceRuns::Make(DType dtype, std::span<const int64_t> shape,
                                  std::span<const Range> slice) {
  std::vector<Range> whole;
  if (slice.empty() && !shape.empty()) {
    for (const int64_t d : shape) whole.push_back({0, d});
    slice = whole;
  }
  VARVE_RETURN_IF_ERROR(CheckRanges(shape, slice));
  const auto bits = static_cast<uint64_t>(DTypeBits(dtype));
  SliceRuns runs;
  runs.num_runs_ = 1;
  uint64_t run = 1;     // elements
  uint64_t stride = 1;  // elements between neighbours of the axis
  uint64_t base = 0;    // elements
  bool contiguous = true;
  std::vector<Axis> outer;  // fastest first, in elements
  for (size_t i = shape.size(); i-- > 0;) {
    const auto begin = static_cast<uint64_t>(slice[i].begin);
    const auto count = static_cast<uint64_t>(slice[i].end - slice[i].begin);
    if (contiguous) {
      run *= count;
      base += begin * stride;
      contiguous = count == static_cast<uint64_t>(shape[i]);
    } else {
      outer.push_back({count, begin * stride, stride});
      runs.num_runs_ *= count;
    }
    stride *= static_cast<uint64_t>(shape[i]);
  }
  if (run == 0) runs.num_runs_ = 0;
  const auto whole_bytes = [&](uint64_t elements) { return elements * bits % 8 == 0; };
  bool aligned = whole_bytes(run) && whole_bytes(base);
  for (auto it = outer.rbegin(); it != outer.rend(); ++it) {
    aligned = aligned && whole_bytes(it->begin_bytes) && whole_bytes(it->stride_bytes);
    runs.outer_.push_back({it->count, it->begin_bytes * bits / 8, it->stride_bytes * bits / 8});
  }
  if (!aligned && runs.num_runs_ > 0) {
    return Status::InvalidArgument("a slice of " + std::string(DTypeName(dtype)) +
                                   " elements must begin and end on whole bytes");
  }
  runs.run_bytes_ = run * bits / 8;
  runs.base_ = base * bits / 8;
  return runs;
}

uint64_t SliceRuns::Begin(uint64_t k) const {
  uint64_t offset = base_;
  for (size_t i = outer_.size(); i-- > 0;) {
    const Axis& axis = outer_[i];
    offset += axis.begin_bytes + k % axis.count * axis.stride_bytes;
    k /= axis.count;
  }
  return offset;
}

uint64_t SliceRuns::FirstRunAfter(uint64_t offset) const {
  uint64_t low = 0, high = num_runs_;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (Begin(middle) + run_bytes_ > offset) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace varve
