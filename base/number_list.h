// SPDX-License-Identifier: Apache-2.0
//
// Writes numbers of ranks or shards for a message. A pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace varve::internal {

// With `what` "rank" it returns "rank 2" or "ranks 2, 3". A very long list is cut: it says how many
// more there are.
inline std::string NumberList(std::string_view what, std::span<const uint32_t> numbers) {
  constexpr size_t kShown = 32;
  std::string text(what);
  if (numbers.size() != 1) text += "s";
  for (size_t i = 0; i < numbers.size() && i < kShown; ++i) {
    text += (i > 0 ? ", " : " ") + std::to_string(numbers[i]);
  }
  if (numbers.size() > kShown) text += " and " + std::to_string(numbers.size() - kShown) + " more";
  return text;
}

}  // namespace varve::internal
