// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/estimate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "codec/entropy/rans.h"
#include "codec/planes/byte_counts.h"

namespace varve::internal {

namespace {

// The fixed bytes of a coder: headers and Huffman tables.
constexpr double kZstdOverhead = 60;
constexpr double kSparseOverhead = 130;
constexpr double kNibblesOverhead = 90;
constexpr double kRansOverhead = 40;
constexpr double kFastNibbleBits = 2.0;
// A smaller gain is not worth the time of a slower coder. Raw is by far the fastest.
constexpr double kMinGain = 0.025;
constexpr double kMinGainOverRaw = 0.05;

// n * log2(n) for n up to kMaxSample, from a table. A logarithm for each of 256 counters of each
// plane would take longer than the sample itself.
const double* NLog2N() {
  static const std::vector<double> table = [] {
    std::vector<double> values(kMaxSample + 1, 0.0);
    for (size_t i = 2; i < values.size(); ++i) {
      values[i] = static_cast<double>(i) * std::log2(static_cast<double>(i));
    }
    return values;
  }();
  return table.data();
}

double BinaryEntropy(double p) {
  if (p <= 0.0 || p >= 1.0) return 0.0;
  return -p * std::log2(p) - (1 - p) * std::log2(1 - p);
}

// Returns the entropy of counters, corrected for what a small sample underestimates (Miller and
// Madow).
struct Information {
  double bits = 0;  // of all symbols together
  uint32_t total = 0;
  uint32_t largest = 0;
};
Information EntropyOf(const uint32_t* counts, size_t begin, size_t end) {
  Information entropy;
  int symbols = 0;
  for (size_t i = begin; i < end; ++i) {
    symbols += counts[i] != 0;
    entropy.total += counts[i];
    entropy.largest = std::max(entropy.largest, counts[i]);
  }
  if (symbols < 2) return entropy;
  const double* const n_log2_n = NLog2N();
  double even = 0;  // a single sum would wait for itself
  double odd = 0;
  size_t i = begin;
  for (; i + 2 <= end; i += 2) {
    even += n_log2_n[counts[i]];
    odd += n_log2_n[counts[i + 1]];
  }
  const double sum = even + odd + (i < end ? n_log2_n[counts[i]] : 0.0);
  entropy.bits = n_log2_n[entropy.total] - sum + 0.72 * (symbols - 1);
  return entropy;
}

// Huffman spends a whole bit on a symbol that needs less.
double HuffmanBits(const Information& entropy) {
  if (2 * entropy.largest <= entropy.total) return entropy.bits;
  const double p = static_cast<double>(entropy.largest) / entropy.total;
  return entropy.bits + entropy.total * (1.0 - BinaryEntropy(p));
}

// Returns the bits of symbols without their lowest bits, which are stored apart. Neighbours make
// the code, and others are escapes.
double RansBitsWith(unsigned low_bits, size_t max_symbols, std::span<const uint32_t> symbols,
                    uint32_t total) {
  uint32_t covered = 0;
  uint32_t best = 0;
  size_t first = 0;
  for (size_t v = 0; v < symbols.size(); ++v) {
    covered += symbols[v];
    if (v >= max_symbols) covered -= symbols[v - max_symbols];
    if (covered <= best) continue;
    best = covered;
    first = v + 1 - std::min(v + 1, max_symbols);
  }
  const size_t end = std::min(first + max_symbols, symbols.size());
  const Information code = EntropyOf(symbols.data(), first, end);
  const double* const n_log2_n = NLog2N();
  const double escapes = n_log2_n[total] - n_log2_n[best] - n_log2_n[total - best];
  return code.bits + escapes + 8.0 * (total - best) + static_cast<double>(low_bits) * total;
}

// Frequencies are multiples of 1 / 256, and rare symbols are escapes. That was measured on planes
// of weights, moments and their deltas.
constexpr double kRansLoss = 1.004;
constexpr double kRansLossBits = 0.01;

double RansBits(const PlaneStats& stats) {
  std::array<uint32_t, 256> symbols = stats.counts;
  double best = RansBitsWith(0, kMaxRansSymbols, symbols, stats.total);
  for (unsigned low_bits = 1; low_bits <= kMaxRansLowBits; ++low_bits) {
    const size_t n = symbols.size() >> low_bits;
    for (size_t v = 0; v < n; ++v) symbols[v] = symbols[2 * v] + symbols[2 * v + 1];
    const double bits =
        RansBitsWith(low_bits, kMaxRansSymbols, std::span(symbols).first(n), stats.total);
    if (bits >= best) break;
    best = bits;
  }
  return kRansLoss * best + kRansLossBits * stats.total;
}

// The same with a code of few symbols.
double FewRansBits(const PlaneStats& stats) {
  return kRansLoss * RansBitsWith(0, kFewRansSymbols, stats.counts, stats.total) +
         kRansLossBits * stats.total;
}

// Besides a small front there are two bytes for each lane. They spare the codes of 64 bytes a
// group.
double RansOverhead(const Information& entropy, size_t num_bytes) {
  const double bits = entropy.bits / entropy.total;
  return kRansOverhead + static_cast<double>(RansGroupsFor(num_bytes)) * (132.0 - 8.0 * bits);
}

double SparseBits(const PlaneStats& stats) {
  const uint32_t zeros = stats.counts[0];
  if (stats.groups == 0 || zeros == 0) return 8.0 * stats.total;
  // A bitmap byte is zero with probability f. The others are nearly independent bits.
  const double f = static_cast<double>(stats.zero_groups) / stats.groups;
  const double p0 = static_cast<double>(zeros) / stats.total;
  const double rest = f < 1.0 ? std::clamp((p0 - f) / (1.0 - f), 0.0, 1.0) : 0.0;
  const double bitmap = BinaryEntropy(f) + (1.0 - f) * 8.0 * BinaryEntropy(rest);
  const double values = HuffmanBits(EntropyOf(stats.counts.data(), 1, 256));
  return stats.total / 8.0 * std::min(bitmap * 1.02, 8.0) + values;
}

// Returns the bits of half bytes that are coded in pairs.
double PairBits(const Information& halves) {
  const double p = static_cast<double>(halves.largest) / std::max(halves.total, 1u);
  const double pair = p * p;  // of the commonest pair, which costs a bit at least
  const double floor = pair > 0.5 ? halves.total / 2.0 * (1.0 - BinaryEntropy(pair)) : 0.0;
  return halves.bits + floor;
}

double NibbleBits(const PlaneStats& stats) {
  uint32_t folded[16] = {};
  std::copy_n(stats.counts.begin(), 15, folded);
  folded[15] = std::accumulate(stats.counts.begin() + 15, stats.counts.end(), uint32_t{0});
  return PairBits(EntropyOf(folded, 0, 16)) + 8.0 * folded[15];
}

// The low halves are stored raw. Otherwise this coder would be no faster than plain Huffman.
double HalvesBits(const PlaneStats& stats) {
  uint32_t high[16] = {};
  for (ptrdiff_t i = 0; i < 16; ++i) {
    const auto first = stats.counts.begin() + 16 * i;
    high[i] = std::accumulate(first, first + 16, uint32_t{0});
  }
  return PairBits(EntropyOf(high, 0, 16)) + 4.0 * stats.total;
}

}  // namespace

void AddSample(const uint8_t* bytes, size_t n, PlaneStats* stats) {
  const ByteCounts counts = CountBytes(std::span(bytes, n));
  for (size_t v = 0; v < counts.size(); ++v) stats->counts[v] += counts[v];
  stats->total += static_cast<uint32_t>(n);
  for (size_t i = 0; i + 8 <= n; i += 8) {
    uint64_t group;
    std::memcpy(&group, bytes + i, sizeof(group));
    stats->zero_groups += group == 0;
  }
  stats->groups += static_cast<uint32_t>(n / 8);
}

bool LooksRandom(const PlaneStats& stats) {
  // The chance that two bytes are equal is 1/256 for random bytes and higher for all others.
  // Computing it needs no logarithm. Unlike the entropy of a sample, it is not biased.
  uint32_t pairs = 0;  // at most kMaxSample squared
  for (const uint32_t count : stats.counts) pairs += count * count;
  const double total = stats.total;
  return (pairs - total) * 256.0 < total * (total - 1.0) * 1.15;
}

RansUse RansUseAt(CpuLevel level, Entropy entropy) {
  if (entropy == Entropy::kZstd) return RansUse::kNever;
  if (entropy == Entropy::kRans) return RansUse::kAlways;
  if (level == CpuLevel::kAvx512) return RansUse::kFirst;
  return level == CpuLevel::kAvx2 ? RansUse::kFew : RansUse::kNever;
}

Estimate EstimateStream(const PlaneStats& stats, size_t num_bytes, RansUse rans) {
  Estimate best;
  if (stats.total == 0 || num_bytes == 0) return best;
  const Information entropy = EntropyOf(stats.counts.data(), 0, 256);
  if (entropy.largest == stats.total) return {.coder = StreamCoder::kConstant, .bits = 0.01};
  if (num_bytes < 64) return best;
  const auto consider = [&](StreamCoder coder, double sample_bits, double overhead_bytes) {
    const double bits =
        sample_bits / stats.total + 8.0 * overhead_bytes / static_cast<double>(num_bytes);
    const double gain = best.coder == StreamCoder::kRaw ? kMinGainOverRaw : kMinGain;
    if (bits < best.bits * (1.0 - gain)) best = {.coder = coder, .bits = bits};
  };
  // The faster coders come first. A later one must be smaller by more than kMinGain.
  const double rans_overhead = RansOverhead(entropy, num_bytes);
  if (rans == RansUse::kFirst || rans == RansUse::kAlways) {
    consider(StreamCoder::kRans, RansBits(stats), rans_overhead);
  }
  if (rans != RansUse::kAlways || best.coder == StreamCoder::kRaw) {
    consider(StreamCoder::kNibbles, NibbleBits(stats), kNibblesOverhead);
    consider(StreamCoder::kHalves, HalvesBits(stats), kNibblesOverhead);
    consider(StreamCoder::kZstd, HuffmanBits(entropy), kZstdOverhead);
  }
  // Nibbles of few bits are read as fast as rANS, because one look into a table gives six.
  const bool slower = best.coder == StreamCoder::kZstd ||
                      (best.coder == StreamCoder::kNibbles && best.bits > kFastNibbleBits);
  if (rans == RansUse::kFew && slower) {
    const double bits =
        FewRansBits(stats) / stats.total + 8.0 * rans_overhead / static_cast<double>(num_bytes);
    if (bits < best.bits * (1.0 + kMinGain)) best = {.coder = StreamCoder::kRans, .bits = bits};
  }
  if (4 * stats.counts[0] > stats.total) {
    consider(StreamCoder::kSparse, SparseBits(stats), kSparseOverhead);
  }
  return best;
}

}  // namespace varve::internal
