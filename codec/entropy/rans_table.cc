// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/rans_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>

namespace varve::internal {

namespace {

// A symbol with a smaller share is left to the escape. A share of 1 / 256 for it would cost all
// other symbols more.
constexpr double kMinShare = 1.0 / 1200;

// How many more bits a code of few symbols may take.
constexpr double kFewLoss = 1.004;

const std::array<double, kRansTotal + 1>& Log2() {
  static const std::array<double, kRansTotal + 1> table = [] {
    std::array<double, kRansTotal + 1> values{};
    for (size_t i = 1; i < values.size(); ++i) values[i] = std::log2(static_cast<double>(i));
    return values;
  }();
  return table;
}

using Counts = std::array<uint32_t, kMaxRansSymbols + 1>;
using Shares = std::array<uint16_t, kMaxRansSymbols + 1>;

// Changes the shares by as little cost as possible until they sum up to kRansTotal. Only those from
// 1 up change, and none gets smaller than 1.
void Balance(const Counts& counts, size_t n, Shares* shares) {
  const auto& log2 = Log2();
  size_t sum =
      std::accumulate(shares->begin(), shares->begin() + static_cast<ptrdiff_t>(n), size_t{0});
  while (sum != kRansTotal) {
    const size_t step = sum < kRansTotal ? 1 : size_t{0} - 1;
    size_t best = n;
    double best_gain = -INFINITY;
    for (size_t i = 0; i < n; ++i) {
      const size_t share = (*shares)[i];
      if (share == 0 || share + step == 0) continue;
      const double gain = counts[i] * (log2[share + step] - log2[share]);
      if (gain > best_gain) best = i;
      best_gain = std::max(best_gain, gain);
    }
    (*shares)[best] = static_cast<uint16_t>((*shares)[best] + step);
    sum += step;
  }
}

double CostOf(const Counts& counts, size_t n, const Shares& shares) {
  double bits = 0;
  for (size_t i = 0; i < n; ++i) {
    if (shares[i] > 0) bits += counts[i] * (8.0 - Log2()[shares[i]]);
  }
  return bits;
}

// Fills a search tree for as many indices as it has entries. Entry 0 stays unused.
void FillTree(const RansDecodeTable& table, std::span<uint8_t> tree) {
  tree[0] = 0;
  for (size_t node = 1; node < tree.size(); ++node) {
    // The first index to the right of this node.
    const auto depth = static_cast<size_t>(std::bit_width(node)) - 1;
    const size_t width = tree.size() >> depth;
    const size_t index = (node - (size_t{1} << depth)) * width + width / 2;
    const size_t before = index > table.escape ? 255 : table.start[index] - size_t{1};
    tree[node] = static_cast<uint8_t>(before ^ 128);
  }
}

}  // namespace

RansChoice MakeRansCode(const ByteCounts& counts, unsigned low_bits, size_t max_symbols) {
  std::array<uint32_t, 256> symbols{};
  for (size_t v = 0; v < counts.size(); ++v) symbols[v >> low_bits] += counts[v];
  const size_t num_values = counts.size() >> low_bits;
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  const auto min_count = static_cast<uint32_t>(std::ceil(static_cast<double>(total) * kMinShare));
  // The neighbours that cover most.
  uint64_t covered = 0;
  uint64_t best = 0;
  size_t first = 0;
  for (size_t v = 0; v < num_values; ++v) {
    covered += symbols[v];
    if (v >= max_symbols) covered -= symbols[v - max_symbols];
    if (covered > best) first = v + 1 - std::min(v + 1, max_symbols);
    best = std::max(best, covered);
  }
  size_t end = std::min(first + max_symbols, num_values);
  while (first + 1 < end && symbols[first] < min_count) ++first;
  while (first + 1 < end && symbols[end - 1] < min_count) --end;

  RansCode code{
      .low_bits = low_bits, .first = static_cast<uint8_t>(first), .num_symbols = end - first};
  const size_t escape = code.num_symbols;
  Counts own{};
  Shares shares{};
  uint64_t escaped = total;
  const double scale =
      static_cast<double>(kRansTotal) / static_cast<double>(std::max<uint64_t>(total, 1));
  const auto share_of = [&](uint64_t count) {
    return static_cast<uint16_t>(
        std::clamp(std::lround(static_cast<double>(count) * scale), 1L, 255L));
  };
  for (size_t i = 0; i < code.num_symbols; ++i) {
    const uint32_t count = symbols[first + i];
    // The first one has a share in every code.
    if (i > 0 && count < std::max(min_count, 1u)) continue;
    own[i] = count;
    shares[i] = share_of(count);
    escaped -= count;
  }
  own[escape] = static_cast<uint32_t>(escaped);
  shares[escape] = share_of(escaped);
  Balance(own, escape + 1, &shares);
  for (size_t i = 0; i <= escape; ++i) code.frequency[i] = static_cast<uint8_t>(shares[i]);
  const double sum = CostOf(own, escape + 1, shares) + 8.0 * static_cast<double>(escaped);
  return {.code = code, .bits = sum / static_cast<double>(std::max<uint64_t>(total, 1)) + low_bits};
}

RansChoice BestRansCode(const ByteCounts& counts) {
  RansChoice best = MakeRansCode(counts, 0, kMaxRansSymbols);
  for (unsigned low_bits = 1; low_bits <= kMaxRansLowBits; ++low_bits) {
    const RansChoice choice = MakeRansCode(counts, low_bits, kMaxRansSymbols);
    if (choice.bits >= best.bits) break;
    best = choice;
  }
  if (best.code.num_symbols <= kFewRansSymbols) return best;
  const RansChoice few = MakeRansCode(counts, best.code.low_bits, kFewRansSymbols);
  return few.bits <= kFewLoss * best.bits ? few : best;
}

RansEncodeTable::RansEncodeTable(const RansCode& code)
    : low_bits(code.low_bits), first(code.first), escape(static_cast<uint8_t>(code.num_symbols)) {
  const uint8_t escape_frequency = code.frequency[code.num_symbols];
  frequency.fill(escape_frequency);
  start.fill(static_cast<uint8_t>(kRansTotal - escape_frequency));
  uint8_t sum = 0;
  for (size_t i = 0; i < code.num_symbols; ++i) {
    if (code.frequency[i] == 0) continue;
    frequency[i] = code.frequency[i];
    start[i] = sum;
    sum = static_cast<uint8_t>(sum + code.frequency[i]);
  }
  for (size_t i = 0; i < reciprocal.size(); ++i) {
    reciprocal[i] = static_cast<uint16_t>(std::min(65536 / frequency[i], 65535));
    reciprocal_low[i] = static_cast<uint8_t>(reciprocal[i]);
    reciprocal_high[i] = static_cast<uint8_t>(reciprocal[i] >> 8);
  }
}

RansDecodeTable::RansDecodeTable(const RansCode& code)
    : frequency(code.frequency), start{}, value{}, escape(static_cast<uint8_t>(code.num_symbols)) {
  size_t slot = 0;
  for (size_t i = 0; i <= code.num_symbols; ++i) {
    start[i] = static_cast<uint8_t>(slot);
    std::fill_n(index_of.begin() + static_cast<ptrdiff_t>(slot), code.frequency[i],
                static_cast<uint8_t>(i));
    slot += code.frequency[i];
    if (i < code.num_symbols) value[i] = static_cast<uint8_t>((code.first + i) << code.low_bits);
  }
  FillTree(*this, small_tree);
  FillTree(*this, tree);
}

}  // namespace varve::internal
