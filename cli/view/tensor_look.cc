// SPDX-License-Identifier: Apache-2.0
#include "cli/view/tensor_look.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "base/number.h"

namespace varve::internal::cli {
namespace {

// Whole elements of every dtype.
constexpr size_t kBlockBytes = 48 << 10;

// Calls `look` with each element as a double, and its index.
template <class Look>
void ForEach(DType dtype, std::span<const std::byte> bytes, const Look& look) {
  uint64_t index = 0;
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(bytes.size(), kBlockBytes));
    bytes = bytes.subspan(block.size());
    std::visit(
        [&](const auto& numbers) {
          for (const auto number : numbers) look(index++, static_cast<double>(number));
        },
        DecodeNumbers(dtype, block));
  }
}

void Count(DType dtype, std::span<const std::byte> bytes, TensorLook* look) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  long double squares = 0;  // the square of a large double is larger than any double
  ForEach(dtype, bytes, [&](uint64_t, double value) {
    ++look->num_elements;
    if (std::isnan(value)) {
      ++look->num_nans;
    } else if (std::isinf(value)) {
      ++look->num_infinite;
    } else {
      if (value == 0) ++look->num_zeros;
      low = std::min(low, value);
      high = std::max(high, value);
      squares += static_cast<long double>(value) * value;
    }
  });
  look->norm = static_cast<double>(std::sqrt(squares));
  if (low > high) return;  // no finite value
  look->low = low;
  look->high = high;
  look->histogram.assign(low == high ? 1 : kHistogramBins, 0);
}

// How one axis of the picture is cut into cells.
struct HeatAxis {
  uint64_t length = 1;
  uint64_t cells = 1;
  uint64_t CellOf(uint64_t i) const { return i * cells / length; }
};

HeatAxis AxisOf(uint64_t length, uint64_t max_cells) {
  return {std::max<uint64_t>(length, 1), std::clamp<uint64_t>(length, 1, max_cells)};
}

// Sums are of doubles that may be close to the largest there is.
void Place(DType dtype, std::span<const int64_t> shape, std::span<const std::byte> bytes,
           TensorLook* look) {
  const uint64_t width = shape.empty() ? 1 : static_cast<uint64_t>(shape.back());
  const HeatAxis columns = AxisOf(width, kMaxHeatColumns);
  const HeatAxis rows = AxisOf(look->num_elements / columns.length, kMaxHeatRows);
  look->heat_rows = rows.cells;
  look->heat_columns = columns.cells;
  std::vector<long double> sums(rows.cells * columns.cells, 0);
  std::vector<uint64_t> counts(sums.size(), 0);
  // Halves, because the whole width can be more than a double holds.
  const double half = look->high / 2 - look->low / 2;
  const auto num_bins = static_cast<double>(look->histogram.size());
  uint64_t row = 0;
  uint64_t column = 0;
  ForEach(dtype, bytes, [&](uint64_t, double value) {
    if (std::isfinite(value)) {
      const double share = half > 0 ? (value / 2 - look->low / 2) / half : 0;
      const auto bin = static_cast<size_t>(share * num_bins);
      ++look->histogram[std::min(bin, look->histogram.size() - 1)];
      const size_t cell = rows.CellOf(row) * columns.cells + columns.CellOf(column);
      sums[cell] += value;
      ++counts[cell];
    }
    if (++column == columns.length) {
      column = 0;
      ++row;
    }
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    look->heat.push_back(static_cast<double>(sums[i] / static_cast<long double>(counts[i])));
  }
}

}  // namespace

TensorLook LookAt(DType dtype, std::span<const int64_t> shape, std::span<const std::byte> bytes) {
  TensorLook look;
  Count(dtype, bytes, &look);
  if (!look.histogram.empty()) Place(dtype, shape, bytes, &look);
  return look;
}

}  // namespace varve::internal::cli
