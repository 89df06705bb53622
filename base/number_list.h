// SPDX-License-Identifier: Apache-2.0
//
// Writes numbers of ranks or shards for a message. A pure function.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace varve::internal {

// With `what` "rank" it returns "rank 2", "ranks 2, 3" or "ranks 0, 2-5". A very long list is cut:
// it says how many more numbers there are. `numbers` is a list of integers in rising order.
template <typename Numbers>
std::string NumberList(std::string_view what, const Numbers& numbers) {
  constexpr size_t kShown = 32;
  std::string text(what);
  if (numbers.size() != 1) text += "s";
  size_t shown = 0;
  for (size_t i = 0, end; i < numbers.size(); i = end) {
    end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (end - i == 2) end = i + 1;  // a pair is no range
    if (shown++ == kShown) return text + " and " + std::to_string(numbers.size() - i) + " more";
    text += (i > 0 ? ", " : " ") + std::to_string(numbers[i]);
    if (end - i > 1) text += "-" + std::to_string(numbers[end - 1]);
  }
  return text;
}

}  // namespace varve::internal
