// SPDX-License-Identifier: Apache-2.0
//
// Tensors in a flat buffer, and the part of each that a rank holds.
#include <algorithm>
#include <numeric>
#include <utility>

#include "trainer_hooks/layouts/axis.h"
#include "trainer_hooks/layouts/flat.h"

namespace varve {
using namespace internal;

namespace {

// Sums stay far from overflow, and no buffer of a trainer is nearly as large.
constexpr int64_t kMaxElements = int64_t{1} << 60;

Status ValidateSizes(std::span<const int64_t> sizes, int64_t ranks) {
  if (ranks < 1 || ranks > int64_t{1} << 32) {
    return Status::InvalidArgument(std::to_string(ranks) + " ranks, expected 1 to 2^32");
  }
  int64_t left = kMaxElements;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > left) {
      return Status::InvalidArgument("tensor " + std::to_string(i) + " of " +
                                     std::to_string(sizes[i]) +
                                     " elements, expected sizes of up to 2^60 in all");
    }
    left -= sizes[i];
  }
  return Status::Ok();
}

// Puts the tensors one after the other, each aligned, with padding at the end.
Result<FlatBuffer> Fuse(std::span<const int64_t> sizes, int64_t align, int64_t align_end) {
  FlatBuffer buffer;
  int64_t end = 0;
  for (const int64_t size : sizes) {
    VARVE_ASSIGN_OR_RETURN(const int64_t begin, PadTo(end, align));
    if (size > INT64_MAX - begin) return Status::InvalidArgument("the buffer overflows int64");
    end = begin + size;
    buffer.tensors.push_back({begin, end});
  }
  VARVE_ASSIGN_OR_RETURN(end, PadTo(end, align_end));
  buffer.buckets = {{0, end}};
  return buffer;
}

std::string RangeText(const Range& range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

Result<Range> BucketOf(const FlatBuffer& buffer, size_t index) {
  if (index >= buffer.tensors.size()) {
    return Status::InvalidArgument("tensor " + std::to_string(index) + " of a buffer of " +
                                   std::to_string(buffer.tensors.size()));
  }
  const Range& tensor = buffer.tensors[index];
  for (const Range& bucket : buffer.buckets) {
    const bool holds = 0 <= bucket.begin && bucket.begin <= tensor.begin &&
                       tensor.begin <= tensor.end && tensor.end <= bucket.end;
    if (holds) return bucket;
  }
  return Status::InvalidArgument("tensor " + std::to_string(index) + " lies at " +
                                 RangeText(tensor) + ", expected one bucket that holds all of it");
}

}  // namespace

Result<FlatBuffer> FusePadded(std::span<const int64_t> sizes, int64_t element_bytes,
                              int64_t ranks) {
  VARVE_RETURN_IF_ERROR(ValidateSizes(sizes, ranks));
  VARVE_ASSIGN_OR_RETURN(const int64_t aligned, AlignedElements(element_bytes));
  FlatBuffer buffer;
  int64_t end = 0;
  for (const int64_t size : sizes) {
    VARVE_ASSIGN_OR_RETURN(const int64_t padded, PadTo(size, aligned * ranks));
    if (padded > INT64_MAX - end) return Status::InvalidArgument("the buffer overflows int64");
    buffer.tensors.push_back({end, end + padded});
    end += padded;
  }
  buffer.buckets = {{0, end}};
  return buffer;
}

Result<FlatBuffer> FuseInBuckets(std::span<const int64_t> sizes, int64_t bucket_size, int64_t ranks,
                                 bool high_bandwidth) {
  VARVE_RETURN_IF_ERROR(ValidateSizes(sizes, ranks));
  constexpr int64_t kTensorAlign = 64, kBucketAlign = 128, kBandwidthAlign = int64_t{1} << 16;
  const int64_t bucket_align = std::lcm(ranks, high_bandwidth ? kBandwidthAlign : kBucketAlign);
  FlatBuffer buffer;
  buffer.tensors.resize(sizes.size());
  int64_t bucket_begin = 0, end = 0;
  for (size_t i = sizes.size(); i-- > 0;) {
    VARVE_ASSIGN_OR_RETURN(const int64_t begin, PadTo(end, kTensorAlign));
    if (sizes[i] > INT64_MAX - begin) return Status::InvalidArgument("the buffer overflows int64");
    end = begin + sizes[i];
    buffer.tensors[i] = {begin, end};
    if (end - bucket_begin < bucket_size && i > 0) continue;
    VARVE_ASSIGN_OR_RETURN(end, PadTo(end, bucket_align));
    buffer.buckets.push_back({bucket_begin, end});
    bucket_begin = end;
  }
  return buffer;
}

Result<FlatBuffer> FuseZeroGroup(std::span<const int64_t> sizes, int64_t ranks) {
  VARVE_RETURN_IF_ERROR(ValidateSizes(sizes, ranks));
  constexpr int64_t kStartAlign = 2;  // 4 bytes of 16-bit elements
  return Fuse(sizes, 1, kStartAlign * ranks);
}

Result<FlatBuffer> FuseFsdpUnit(std::span<const int64_t> sizes, int64_t element_bytes,
                                int64_t ranks, bool use_orig_params) {
  VARVE_RETURN_IF_ERROR(ValidateSizes(sizes, ranks));
  if (element_bytes < 1) {
    return Status::InvalidArgument("elements of " + std::to_string(element_bytes) +
                                   " bytes, expected at least 1");
  }
  constexpr int64_t kAlignBytes = 16;
  const int64_t align = use_orig_params ? std::max<int64_t>(1, kAlignBytes / element_bytes) : 1;
  return Fuse(sizes, align, ranks);
}

Result<ShardLayout> SliceOfBuffer(ShardLayout layout, const FlatBuffer& buffer, size_t index,
                                  RankOf group) {
  VARVE_RETURN_IF_ERROR(ValidateRank(group));
  VARVE_RETURN_IF_ERROR(ValidateUncut(layout));
  VARVE_ASSIGN_OR_RETURN(const Range bucket, BucketOf(buffer, index));
  const Range& tensor = buffer.tensors[index];
  if (tensor.end - tensor.begin < layout.NumLocal()) {
    return Status::InvalidArgument("tensor " + std::to_string(index) + " lies at " +
                                   RangeText(tensor) + " of the buffer, its layout has " +
                                   std::to_string(layout.NumLocal()) + " elements");
  }
  const int64_t bucket_length = bucket.end - bucket.begin;
  VARVE_RETURN_IF_ERROR(ExpectMultiple("the bucket " + RangeText(bucket), bucket_length, group));
  const int64_t part = bucket_length / group.ranks;
  const int64_t part_begin = bucket.begin + group.rank * part;
  const int64_t begin = std::clamp(part_begin, tensor.begin, tensor.end);
  const int64_t end = std::clamp(part_begin + part, tensor.begin, tensor.end);
  return TakeElements(std::move(layout), {begin - tensor.begin, end - tensor.begin});
}

}  // namespace varve
