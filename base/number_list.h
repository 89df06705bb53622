// SPDX-License-Identifier: Apache-2.0
//
// Numbers of ranks, or of shards, as a message lists them. A pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace varve {

// Of `what` "rank": "rank 2", "ranks 2, 3"; of very many the first ones, and how many more.
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

}  // namespace varve
