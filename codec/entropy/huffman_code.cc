// SPDX-License-Identifier: Apache-2.0
//
// A code is described by weights. A symbol of weight w > 0 has a code of (longest + 1 - w) bits. A
// symbol of weight 0 has none. Weights are stored as half bytes, or as the symbols of an FSE
// stream.
#include "codec/entropy/huffman_code.h"

#include <algorithm>
#include <bit>
#include <span>

namespace varve::internal {

namespace {

constexpr size_t kMaxWeights = 255;  // of 256 symbols the last one's follows from the others
constexpr unsigned kFirstDirect = 128;
constexpr unsigned kMinFseLog = 5;
constexpr unsigned kMaxFseLog = 6;

struct Weights {
  std::array<uint8_t, kMaxWeights + 1> at{};
  size_t count = 0;
};

bool ReadDirect(ByteReader* reader, size_t count, Weights* weights) {
  std::span<const std::byte> bytes;
  if (!reader->TakeSpan((count + 1) / 2, &bytes)) return false;
  for (size_t i = 0; i < count; ++i) {
    const auto pair = std::to_integer<unsigned>(bytes[i / 2]);
    weights->at[i] = static_cast<uint8_t>(i % 2 == 0 ? pair >> 4 : pair & 15u);
  }
  weights->count = count;
  return true;
}

// The body of an FSE stream with readable room past its end.
class FseBits {
 public:
  explicit FseBits(std::span<const std::byte> body) : num_bits_(8 * body.size()) {
    std::copy(body.begin(), body.end(), bytes_.begin());
  }
  // Returns the 16 bits from a position on. The position is at most num_bits().
  unsigned At(size_t position) const {
    return (LoadLittle<uint32_t>(&bytes_[position / 8]) >> (position % 8)) & 0xFFFFu;
  }
  unsigned At(size_t position, unsigned count) const { return At(position) & ((1u << count) - 1); }
  size_t num_bits() const { return num_bits_; }

 private:
  std::array<std::byte, kFirstDirect + 4> bytes_{};
  size_t num_bits_;
};

// The number of the 2^log cells that each weight has. -1 means one cell at the end of the table.
struct Distribution {
  unsigned log = 0;
  std::array<int, kMaxCodeBits + 1> cells{};
};

// A count is stored with the bits that the cells left over need, and a small one with one bit less.
// After a zero, pairs of bits say how many more zeros follow. Moves *position past it all.
bool ReadDistribution(const FseBits& bits, size_t* position, Distribution* distribution) {
  distribution->log = bits.At(*position, 4) + kMinFseLog;
  *position += 4;
  if (distribution->log > kMaxFseLog) return false;
  int left = 1 << distribution->log;
  size_t weight = 0;
  while (left > 0) {
    if (weight >= distribution->cells.size() || *position > bits.num_bits()) return false;
    const auto width = static_cast<unsigned>(std::bit_width(static_cast<unsigned>(left + 1)));
    const unsigned num_short = (1u << width) - 1 - static_cast<unsigned>(left + 1);
    unsigned value = bits.At(*position, width);
    if ((value & ((1u << (width - 1)) - 1)) < num_short) {
      value &= (1u << (width - 1)) - 1;
      *position += width - 1;
    } else {
      if (value >= 1u << (width - 1)) value -= num_short;
      *position += width;
    }
    const int cells = static_cast<int>(value) - 1;
    distribution->cells[weight++] = cells;
    left -= cells < 0 ? 1 : cells;
    if (cells != 0) continue;
    unsigned more = 3;
    while (more == 3 && *position <= bits.num_bits()) {
      more = bits.At(*position, 2);
      *position += 2;
      weight += more;
    }
  }
  *position = (*position + 7) / 8 * 8;
  return left == 0 && *position <= bits.num_bits();
}

// The symbol of a state, and the states that may follow it.
struct FseCell {
  uint8_t weight = 0;
  uint8_t bits = 0;
  uint8_t next = 0;
};
using FseTable = std::array<FseCell, size_t{1} << kMaxFseLog>;

void SpreadCells(const Distribution& distribution, FseTable* table) {
  const size_t size = size_t{1} << distribution.log;
  size_t end = size;
  for (size_t w = 0; w < distribution.cells.size(); ++w) {
    if (distribution.cells[w] < 0) (*table)[--end].weight = static_cast<uint8_t>(w);
  }
  size_t at = 0;
  for (size_t w = 0; w < distribution.cells.size(); ++w) {
    for (int k = 0; k < distribution.cells[w]; ++k) {
      (*table)[at].weight = static_cast<uint8_t>(w);
      do at = (at + size / 2 + size / 8 + 3) % size;
      while (at >= end);
    }
  }
}

FseTable MakeFseTable(const Distribution& distribution) {
  FseTable table{};
  SpreadCells(distribution, &table);
  std::array<unsigned, kMaxCodeBits + 1> seen{};
  for (size_t w = 0; w < seen.size(); ++w) {
    seen[w] = static_cast<unsigned>(std::abs(distribution.cells[w]));
  }
  const size_t size = size_t{1} << distribution.log;
  for (size_t i = 0; i < size; ++i) {
    const unsigned state = seen[table[i].weight]++;
    const unsigned bits = distribution.log + 1 - static_cast<unsigned>(std::bit_width(state));
    table[i].bits = static_cast<uint8_t>(bits);
    table[i].next = static_cast<uint8_t>((state << bits) - size);
  }
  return table;
}

// Reads with two states in turn, from the end. The stream ends when a state wants more bits than
// are left. The other state then still has a weight to give.
bool ReadFse(ByteReader* reader, size_t body_bytes, Weights* weights) {
  std::span<const std::byte> body;
  if (body_bytes < 2 || !reader->TakeSpan(body_bytes, &body)) return false;
  const auto mark = std::to_integer<unsigned>(body.back());
  if (mark == 0) return false;
  const FseBits bits(body);
  size_t begin = 0;
  Distribution distribution;
  if (!ReadDistribution(bits, &begin, &distribution)) return false;
  const FseTable table = MakeFseTable(distribution);
  size_t end = 8 * (body_bytes - 1) + static_cast<size_t>(std::bit_width(mark)) - 1;
  if (end < begin + size_t{2} * distribution.log) return false;
  unsigned states[2];
  for (unsigned& state : states) state = bits.At(end -= distribution.log, distribution.log);
  for (size_t turn = 0; weights->count + 2 <= kMaxWeights; turn ^= 1) {
    const FseCell& cell = table[states[turn]];
    weights->at[weights->count++] = cell.weight;
    if (end < begin + cell.bits) {
      weights->at[weights->count++] = table[states[turn ^ 1]].weight;
      return true;
    }
    states[turn] = cell.next + bits.At(end -= cell.bits, cell.bits);
  }
  return false;
}

// The last weight is the one that makes the code complete.
bool MakeCode(Weights* weights, HuffmanCode* code) {
  unsigned sum = 0;
  for (size_t i = 0; i < weights->count; ++i) {
    if (weights->at[i] > kMaxCodeBits) return false;
    sum += (1u << weights->at[i]) >> 1;
  }
  const auto longest = static_cast<unsigned>(std::bit_width(sum));
  if (longest == 0 || longest > kMaxCodeBits) return false;
  const unsigned rest = (1u << longest) - sum;
  if (!std::has_single_bit(rest)) return false;
  weights->at[weights->count++] = static_cast<uint8_t>(std::bit_width(rest));
  const auto end = weights->at.begin() + static_cast<ptrdiff_t>(weights->count);
  if (std::count(weights->at.begin(), end, uint8_t{1}) < 2) return false;
  code->bits.fill(0);
  for (size_t i = 0; i < weights->count; ++i) {
    if (weights->at[i] == 0) continue;
    code->bits[i] = static_cast<uint8_t>(longest + 1 - weights->at[i]);
  }
  return true;
}

}  // namespace

bool ReadHuffmanCode(ByteReader* reader, HuffmanCode* code) {
  uint8_t first = 0;
  if (!reader->Take(&first)) return false;
  Weights weights;
  const bool read = first >= kFirstDirect ? ReadDirect(reader, first - (kFirstDirect - 1), &weights)
                                          : ReadFse(reader, first, &weights);
  return read && MakeCode(&weights, code);
}

}  // namespace varve::internal
