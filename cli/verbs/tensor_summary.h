// SPDX-License-Identifier: Apache-2.0
//
// Summary of a tensor's values for people: the smallest, the largest, the mean and the first few.
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "varve/tensor.h"

namespace varve::internal::cli {

class TensorSummary {
 public:
  static constexpr uint64_t kDefaultValues = 8;

  // Keeps the first `max_values` elements to show.
  explicit TensorSummary(DType dtype, uint64_t max_values = kDefaultValues)
      : dtype_(dtype), max_values_(max_values) {}

  // Takes the next elements, in order. They must be whole.
  void Add(std::span<const std::byte> bytes);

  // Returns lines such as "min -1.5". NaNs are counted and otherwise left out. Complex tensors have
  // only values.
  std::string ToText() const;
  // The same, with the values in lines of `row_elements` each.
  std::string ToText(uint64_t row_elements) const;
  // Returns min, max, mean (null when there is none), nan, values.
  nlohmann::ordered_json ToJson() const;

 private:
  using Number = std::variant<int64_t, uint64_t, double>;

  template <typename T>
  void AddNumbers(const std::vector<T>& numbers);
  template <typename T>
  void AddExtremes(const std::vector<T>& numbers);
  std::optional<double> Mean() const;
  std::string StatisticsText() const;
  std::string ElementText(uint64_t i) const;
  uint64_t NumKept() const;

  DType dtype_;
  uint64_t max_values_;
  std::optional<Number> min_;
  std::optional<Number> max_;
  long double sum_ = 0;       // of doubles that may be close to the largest there is
  uint64_t num_numbers_ = 0;  // all but NaNs
  uint64_t num_nans_ = 0;
  std::vector<Number> first_;
  uint64_t num_elements_ = 0;
};

}  // namespace varve::internal::cli
