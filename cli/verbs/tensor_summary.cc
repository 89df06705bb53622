// SPDX-License-Identifier: Apache-2.0
#include "cli/verbs/tensor_summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

#include "base/number.h"
#include "cli/json.h"
#include "cli/print.h"

namespace varve::internal::cli {
namespace {

using Number = std::variant<int64_t, uint64_t, double>;
using nlohmann::ordered_json;

// The size is divisible by every element size, including three bytes of 6-bit elements.
constexpr size_t kBlockBytes = 48 << 10;

std::string NumberText(const Number& number) {
  if (const auto* value = std::get_if<double>(&number)) return HumanNumber(*value);
  return std::visit([](auto value) { return std::to_string(value); }, number);
}

ordered_json NumberJson(const Number& number) {
  if (const auto* value = std::get_if<double>(&number)) return ToJson(*value);
  return std::visit([](auto value) { return ordered_json(value); }, number);
}

std::string ComplexText(const Number& real, const Number& imaginary) {
  const std::string text = NumberText(imaginary);
  return NumberText(real) + (text.starts_with('-') ? "" : "+") + text + "j";
}

}  // namespace

void TensorSummary::Add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<const std::byte> block = bytes.first(std::min(bytes.size(), kBlockBytes));
    bytes = bytes.subspan(block.size());
    std::visit([this](const auto& numbers) { AddNumbers(numbers); }, DecodeNumbers(dtype_, block));
  }
}

template <typename T>
void TensorSummary::AddNumbers(const std::vector<T>& numbers) {
  const size_t per_element = dtype_ == DType::kC64 ? 2 : 1;
  num_elements_ += numbers.size() / per_element;
  const size_t missing = std::min(max_values_ * per_element - first_.size(), numbers.size());
  first_.insert(first_.end(), numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(missing));
  if (dtype_ != DType::kC64) AddExtremes(numbers);
}

template <typename T>
void TensorSummary::AddExtremes(const std::vector<T>& numbers) {
  const auto is_nan = [](T number) { return number != number; };
  const auto first = std::find_if_not(numbers.begin(), numbers.end(), is_nan);
  num_nans_ += static_cast<uint64_t>(std::count_if(numbers.begin(), numbers.end(), is_nan));
  if (first == numbers.end()) return;
  T min = min_ ? std::get<T>(*min_) : *first;
  T max = max_ ? std::get<T>(*max_) : *first;
  for (auto number = first; number != numbers.end(); ++number) {
    if (is_nan(*number)) continue;
    min = std::min(min, *number);
    max = std::max(max, *number);
    sum_ += static_cast<double>(*number);
    ++num_numbers_;
  }
  min_ = min;
  max_ = max;
}

std::optional<double> TensorSummary::Mean() const {
  if (num_numbers_ == 0) return std::nullopt;
  return static_cast<double>(sum_ / static_cast<long double>(num_numbers_));
}

uint64_t TensorSummary::NumKept() const {
  return dtype_ == DType::kC64 ? first_.size() / 2 : first_.size();
}

std::string TensorSummary::ElementText(uint64_t i) const {
  return dtype_ == DType::kC64 ? ComplexText(first_[2 * i], first_[2 * i + 1])
                               : NumberText(first_[i]);
}

std::string TensorSummary::StatisticsText() const {
  std::string text;
  if (min_) text += "min     " + NumberText(*min_) + "\n";
  if (max_) text += "max     " + NumberText(*max_) + "\n";
  if (const auto mean = Mean()) text += "mean    " + HumanNumber(*mean) + "\n";
  if (num_nans_ > 0) text += "NaN     " + Count(num_nans_, "element") + "\n";
  return text;
}

std::string TensorSummary::ToText() const {
  std::string text = StatisticsText() + "values ";
  for (uint64_t i = 0; i < NumKept(); ++i) text += " " + ElementText(i);
  if (num_elements_ > NumKept()) text += " ...";
  return text + "\n";
}

std::string TensorSummary::ToText(uint64_t row_elements) const {
  std::string text = StatisticsText() + "values\n";
  for (uint64_t i = 0; i < NumKept(); ++i) {
    const bool ends_row = (i + 1) % row_elements == 0 || i + 1 == NumKept();
    text += ElementText(i);
    if (i + 1 == NumKept() && num_elements_ > NumKept()) text += " ...";
    text += ends_row ? "\n" : " ";
  }
  return text;
}

ordered_json TensorSummary::ToJson() const {
  ordered_json values = ordered_json::array();
  for (const Number& number : first_) values.push_back(NumberJson(number));
  const auto mean = Mean();
  return {{"min", min_ ? NumberJson(*min_) : ordered_json()},
          {"max", max_ ? NumberJson(*max_) : ordered_json()},
          {"mean", mean ? cli::ToJson(*mean) : ordered_json()},
          {"nan", num_nans_},
          {"values", std::move(values)}};
}

}  // namespace varve::internal::cli
