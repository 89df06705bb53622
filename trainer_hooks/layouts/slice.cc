// SPDX-License-Identifier: Apache-2.0
//
// Flat slices of one tensor at a time.
#include <utility>

#include "trainer_hooks/layouts/axis.h"
#include "trainer_hooks/layouts/flat.h"

namespace varve::internal {

namespace {

// Stage 3 of Paddle leaves tensors up to this many elements whole.
constexpr int64_t kLargestWhole = int64_t{1} << 20;

}  // namespace

Result<int64_t> AlignedElements(int64_t element_bytes) {
  constexpr int64_t kAlignedBytes = 256;
  if (element_bytes < 1 || kAlignedBytes % element_bytes != 0) {
    return Status::InvalidArgument("elements of " + std::to_string(element_bytes) +
                                   " bytes, expected a divisor of " +
                                   std::to_string(kAlignedBytes));
  }
  return kAlignedBytes / element_bytes;
}

}  // namespace varve::internal

namespace varve {
using namespace internal;

Result<ShardLayout> TakeElements(ShardLayout layout, Range elements) {
  VARVE_RETURN_IF_ERROR(ValidateUncut(layout));
  layout.flat = elements;
  VARVE_RETURN_IF_ERROR(ValidateLayout(layout));
  return layout;
}

Result<ShardLayout> SliceFlat(ShardLayout layout, RankOf group, int64_t align) {
  VARVE_RETURN_IF_ERROR(ValidateRank(group));
  VARVE_RETURN_IF_ERROR(ValidateUncut(layout));
  VARVE_ASSIGN_OR_RETURN(const int64_t aligned, PadTo(layout.NumLocal(), align));
  VARVE_ASSIGN_OR_RETURN(const int64_t padded, PadTo(aligned, group.ranks));
  const int64_t slice = padded / group.ranks;
  return TakeElements(std::move(layout), {group.rank * slice, (group.rank + 1) * slice});
}

Result<ShardLayout> SliceLarge(ShardLayout layout, int64_t element_bytes, RankOf group) {
  VARVE_RETURN_IF_ERROR(ValidateRank(group));
  VARVE_RETURN_IF_ERROR(ValidateUncut(layout));
  VARVE_ASSIGN_OR_RETURN(const int64_t align, AlignedElements(element_bytes));
  if (layout.NumLocal() <= kLargestWhole) return layout;
  return SliceFlat(std::move(layout), group, align);
}

}  // namespace varve
