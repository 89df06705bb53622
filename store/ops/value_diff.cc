// SPDX-License-Identifier: Apache-2.0
#include "store/ops/value_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/number.h"

namespace varve::internal {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Whole elements of every dtype. Their numbers stay in caches.
constexpr size_t kBlockBytes = 6 << 10;
static_assert(kBlockBytes % 24 == 0);

template <typename T>
void AddNumbers(const std::vector<T>& before, const std::vector<T>& after,
                size_t numbers_per_element, PartialDiff* out) {
  PartialDiff& diff = *out;
  for (size_t i = 0; i < before.size(); i += numbers_per_element) {
    bool changed = false;
    bool is_new_nan = false;
    for (size_t k = i; k < i + numbers_per_element; ++k) {
      const auto a = static_cast<double>(before[k]);
      const auto b = static_cast<double>(after[k]);
      diff.squares_before += a * a;
      const bool was_nan = before[k] != before[k];
      const bool is_nan = after[k] != after[k];
      if (before[k] == after[k] || (was_nan && is_nan)) continue;
      changed = true;
      if (is_nan) is_new_nan = true;
      const double delta = std::abs(b - a);
      diff.max_abs = std::isnan(delta) ? kInfinity : std::max(diff.max_abs, delta);
      diff.squares_of_difference += delta * delta;
    }
    if (changed) ++diff.changed_elements;
    if (is_new_nan) ++diff.new_nans;
  }
}

}  // namespace

PartialDiff CompareElements(DType dtype, std::span<const std::byte> before,
                            std::span<const std::byte> after) {
  PartialDiff diff;
  for (size_t at = 0; at < before.size(); at += kBlockBytes) {
    const size_t size = std::min(kBlockBytes, before.size() - at);
    const Numbers a = DecodeNumbers(dtype, before.subspan(at, size));
    const Numbers b = DecodeNumbers(dtype, after.subspan(at, size));
    std::visit(
        [&](const auto& numbers) {
          using Vector = std::decay_t<decltype(numbers)>;
          AddNumbers(numbers, std::get<Vector>(b), dtype == DType::kC64 ? 2 : 1, &diff);
        },
        a);
  }
  return diff;
}

ValueDiff Sum(uint64_t num_elements, std::span<const PartialDiff> parts) {
  ValueDiff diff{.num_elements = num_elements};
  double squares_of_difference = 0, squares_before = 0;
  for (const PartialDiff& part : parts) {
    diff.changed_elements += part.changed_elements;
    diff.max_abs = std::max(diff.max_abs, part.max_abs);
    diff.new_nans += part.new_nans;
    squares_of_difference += part.squares_of_difference;
    squares_before += part.squares_before;
  }
  const double ratio = std::sqrt(squares_of_difference) / std::sqrt(squares_before);
  if (diff.changed_elements > 0) diff.relative_norm = std::isnan(ratio) ? kInfinity : ratio;
  return diff;
}

}  // namespace varve::internal
