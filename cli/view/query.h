// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a request, and what they may be. Errors are kInvalidArgument and name the
// parameter. A plain value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"

namespace varve::internal::cli {

// The rows that a request gets at once unless it asks for fewer or more, and the most that it gets.
inline constexpr uint64_t kDefaultRows = 100;
inline constexpr uint64_t kMaxRows = 1000;

// Which part of a sorted table is asked for.
struct PageOfRows {
  uint64_t offset = 0;
  uint64_t limit = kDefaultRows;
  // Returns the first row and the one behind the last, of `count` rows.
  std::pair<size_t, size_t> Of(size_t count) const;
};

class Query {
 public:
  explicit Query(std::multimap<std::string, std::string> values) : values_(std::move(values)) {}

  // Fails for a parameter that is not among the words of `known`, and for one that is there twice.
  // A word with a star at its end may be there several times.
  Status CheckNames(std::string_view known) const;

  // Needed must be there and not empty.
  Result<std::string> Needed(const std::string& name) const;
  std::string Text(const std::string& name, std::string fallback = "") const;
  std::vector<std::string> Texts(const std::string& name) const;
  Result<uint64_t> Number(const std::string& name, uint64_t fallback, uint64_t max) const;
  // "1" or "0".
  Result<bool> Flag(const std::string& name) const;
  // One of the words of `choices`. The first stands for a parameter that is not there.
  Result<std::string> OneOf(const std::string& name, std::string_view choices) const;
  // The parameters "offset" and "limit".
  Result<PageOfRows> Page() const;

 private:
  std::multimap<std::string, std::string> values_;
};

}  // namespace varve::internal::cli
