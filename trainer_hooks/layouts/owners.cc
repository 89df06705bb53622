// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "varve/layouts.h"

namespace varve {
Result<std::vector<int64_t>> AssignOwners(std::span<const int64_t> sizes, int64_t ranks,
                                          OwnerOrder order) {
  if (ranks < 1) {
    return Status::InvalidArgument(std::to_string(ranks) + " ranks, expected at least 1");
  }
  std::vector<size_t> turns(sizes.size());
  std::iota(turns.begin(), turns.end(), size_t{0});
  if (order == OwnerOrder::kLargestFirst) {
    std::stable_sort(turns.begin(), turns.end(),
                     [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  }
  std::vector<int64_t> owners(sizes.size()), loads(static_cast<size_t>(ranks));
  for (const size_t tensor : turns) {
    const auto least = std::min_element(loads.begin(), loads.end());
    if (sizes[tensor] < 0 || sizes[tensor] > INT64_MAX - *least) {
      return Status::InvalidArgument("tensor " + std::to_string(tensor) + " of " +
                                     std::to_string(sizes[tensor]) +
                                     " elements, expected sizes whose sum fits int64");
    }
    owners[tensor] = least - loads.begin();
    *least += sizes[tensor];
  }
  return owners;
}

}  // namespace varve
