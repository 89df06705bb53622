// SPDX-License-Identifier: Apache-2.0
//
// Writes what huffman_code.cc reads.
#include <algorithm>
#include <array>
#include <bit>

#include "codec/entropy/huffman_code.h"

namespace varve::internal {

namespace {

constexpr unsigned kFseLog = 6;
constexpr unsigned kFseSize = 1u << kFseLog;
constexpr size_t kMaxDirect = 128;
constexpr size_t kNumWeights = kMaxCodeBits + 1;

// The weights that are stored. They are those of all symbols before the last one, whose weight
// follows from them.
struct Weights {
  std::array<uint8_t, 256> at;
  size_t count = 0;
};

Weights WeightsOf(const HuffmanCode& code) {
  const unsigned longest = *std::max_element(code.bits.begin(), code.bits.end());
  Weights weights;
  weights.count = code.bits.size() - 1;
  while (code.bits[weights.count] == 0) --weights.count;
  for (size_t symbol = 0; symbol < weights.count; ++symbol) {
    const unsigned bits = code.bits[symbol];
    weights.at[symbol] = static_cast<uint8_t>(bits == 0 ? 0 : longest + 1 - bits);
  }
  return weights;
}

size_t WriteDirect(const Weights& weights, std::byte* to) {
  to[0] = static_cast<std::byte>(kMaxDirect - 1 + weights.count);
  for (size_t i = 0; i < weights.count; i += 2) {
    const unsigned low = i + 1 < weights.count ? weights.at[i + 1] : 0u;
    to[1 + i / 2] = static_cast<std::byte>(weights.at[i] << 4 | low);
  }
  return 1 + (weights.count + 1) / 2;
}

// Writes bits, from the lowest of a byte on. It writes up to 8 bytes past its end.
class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : begin_(to), at_(to) {}
  void Put(unsigned value, unsigned bits) {
    pending_ |= static_cast<uint64_t>(value) << count_;
    count_ += bits;
    StoreLittle(pending_, at_);
    at_ += count_ / 8;
    pending_ >>= count_ / 8 * 8;
    count_ %= 8;
  }
  // The last byte is filled with zeros. Returns all bytes.
  size_t Finish() const { return static_cast<size_t>(at_ - begin_) + (count_ > 0 ? 1 : 0); }

 private:
  std::byte* begin_;
  std::byte* at_;
  uint64_t pending_ = 0;
  unsigned count_ = 0;  // of bits that make no byte yet
};

// The number of the kFseSize cells that each weight has.
using Cells = std::array<unsigned, kNumWeights>;

Cells CellsOf(const Weights& weights) {
  Cells cells{};
  std::array<unsigned, kNumWeights> counts{};
  for (size_t i = 0; i < weights.count; ++i) ++counts[weights.at[i]];
  unsigned given = 0;
  for (size_t w = 0; w < kNumWeights; ++w) {
    if (counts[w] == 0) continue;
    const auto total = static_cast<unsigned>(weights.count);
    cells[w] = std::max(1u, (counts[w] * kFseSize + total / 2) / total);
    given += cells[w];
  }
  // A cell more or less matters least to the most frequent weight.
  for (; given < kFseSize; ++given) ++*std::max_element(cells.begin(), cells.end());
  for (; given > kFseSize; --given) --*std::max_element(cells.begin(), cells.end());
  return cells;
}

// Writes what ReadDistribution of huffman_code.cc reads.
void WriteDistribution(const Cells& cells, BitWriter* bits) {
  bits->Put(kFseLog - 5, 4);
  unsigned left = kFseSize;
  for (size_t w = 0; left > 0; ++w) {
    const auto width = static_cast<unsigned>(std::bit_width(left + 1));
    const unsigned num_short = (1u << width) - 1 - (left + 1);
    const unsigned value = cells[w] + 1;
    if (value < num_short) {
      bits->Put(value, width - 1);
    } else {
      bits->Put(value < 1u << (width - 1) ? value : value + num_short, width);
    }
    left -= cells[w];
    if (cells[w] != 0 || left == 0) continue;
    size_t zeros = 0;
    while (cells[w + 1 + zeros] == 0) ++zeros;
    w += zeros;
    for (; zeros >= 3; zeros -= 3) bits->Put(3, 2);
    bits->Put(static_cast<unsigned>(zeros), 2);
  }
}

// The states of each weight: those of its cells, in order.
struct FseTable {
  std::array<uint8_t, kFseSize> next;  // the state, sorted by weight
  Cells first;                         // of each weight in `next`
};

FseTable MakeFseTable(const Cells& cells) {
  FseTable table;
  std::array<uint8_t, kFseSize> weight_of;
  size_t at = 0;
  unsigned begin = 0;
  for (size_t w = 0; w < kNumWeights; ++w) {
    table.first[w] = begin;
    begin += cells[w];
    for (unsigned k = 0; k < cells[w]; ++k) {
      weight_of[at] = static_cast<uint8_t>(w);
      at = (at + kFseSize / 2 + kFseSize / 8 + 3) % kFseSize;
    }
  }
  Cells filled = table.first;
  for (size_t i = 0; i < kFseSize; ++i) {
    table.next[filled[weight_of[i]]++] = static_cast<uint8_t>(i);
  }
  return table;
}

// Writes with two states in turn, from the last weight to the first.
class FseEncoder {
 public:
  FseEncoder(const Cells& cells, BitWriter* bits)
      : cells_(cells), table_(MakeFseTable(cells)), bits_(bits) {}
  // The first weight of a state costs no bits.
  void Begin(size_t turn, unsigned weight) {
    states_[turn] = kFseSize + table_.next[table_.first[weight]];
  }
  void Put(size_t turn, unsigned weight) {
    unsigned state = states_[turn];
    const unsigned cells = cells_[weight];
    unsigned bits = kFseLog - static_cast<unsigned>(std::bit_width(cells)) + 1;
    bits -= state >> bits < cells;
    bits_->Put(state & ((1u << bits) - 1), bits);
    state = table_.first[weight] + (state >> bits) - cells;
    states_[turn] = kFseSize + table_.next[state];
  }
  void End() {
    for (const size_t turn : {size_t{1}, size_t{0}}) {
      bits_->Put(states_[turn] - kFseSize, kFseLog);
    }
    bits_->Put(1, 1);
  }

 private:
  const Cells& cells_;
  FseTable table_;
  BitWriter* bits_;
  unsigned states_[2] = {};
};

// Room for weights that FSE makes longer. WriteFse returns 0 when FSE does not suit the weights.
constexpr size_t kFseRoom = 512;
size_t WriteFse(const Weights& weights, std::byte* to) {
  const Cells cells = CellsOf(weights);
  if (weights.count < 2 || *std::max_element(cells.begin(), cells.end()) == kFseSize) return 0;
  BitWriter distribution(to);
  WriteDistribution(cells, &distribution);
  const size_t distribution_bytes = distribution.Finish();
  BitWriter body(to + distribution_bytes);
  FseEncoder encoder(cells, &body);
  for (size_t i = weights.count; i-- > 0;) {
    const size_t turn = i % 2;
    if (i + 2 >= weights.count) {
      encoder.Begin(turn, weights.at[i]);
    } else {
      encoder.Put(turn, weights.at[i]);
    }
  }
  encoder.End();
  return distribution_bytes + body.Finish();
}

}  // namespace

size_t WriteHuffmanCode(const HuffmanCode& code, std::byte* to) {
  const Weights weights = WeightsOf(code);
  std::array<std::byte, kFseRoom> fse;
  const size_t fse_bytes = WriteFse(weights, fse.data());
  const size_t direct_bytes = weights.count <= kMaxDirect ? 1 + (weights.count + 1) / 2 : SIZE_MAX;
  if (fse_bytes > 0 && fse_bytes < kMaxCodeDescription && 1 + fse_bytes < direct_bytes) {
    to[0] = static_cast<std::byte>(fse_bytes);
    std::copy_n(fse.begin(), fse_bytes, to + 1);
    return 1 + fse_bytes;
  }
  return direct_bytes == SIZE_MAX ? 0 : WriteDirect(weights, to);
}

}  // namespace varve::internal
