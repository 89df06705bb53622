// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/huffman_encoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace varve::internal {

namespace {

constexpr size_t kNumStreams = 4;
// The symbols between two stores. 4 * 11 bits and 7 from before leave the low byte free.
constexpr ptrdiff_t kRoundSymbols = 4;
// Making the table of pairs takes as long as coding some thousand symbols.
constexpr size_t kMinPaired = size_t{16} << 10;

// A stream is written from its last symbol to its first. The codes are at the top of `bits`, with
// those of the last symbol lowest. Below them are bits that were stored, and garbage. The low six
// bits of `count` say how many bits are not stored yet. Between rounds that is less than 8.
struct Stream {
  const uint8_t* begin;  // of the symbols
  const uint8_t* end;    // of those that have no code yet
  uint8_t* to;
  uint64_t bits = 0;
  uint64_t count = 0;
};

// An entry of a table has one or two codes at its top, and their length at its bottom.
VARVE_INLINE inline void Push(uint64_t entry, uint64_t* bits, uint64_t* count) {
  *bits = (*bits >> (entry & 63)) | entry;
  *count += entry;
}

// Stores all bits and keeps those that do not fill a byte.
VARVE_INLINE inline void Flush(uint64_t bits, uint64_t* count, uint8_t** to) {
  const uint64_t n = *count & 63;
  const uint64_t word = bits >> ((64 - n) & 63);
  std::memcpy(*to, &word, sizeof(word));
  *to += n / 8;
  *count = n % 8;
}

VARVE_INLINE inline uint16_t Load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

VARVE_INLINE inline void EncodeLast(const uint64_t* table, Stream* stream) {
  Push(table[*--stream->end], &stream->bits, &stream->count);
  Flush(stream->bits, &stream->count, &stream->to);
}

// Rounds of two streams side by side, because pointers and words of four do not fit the registers.
// push(at, bits, count) pushes the codes of the kRoundSymbols symbols at a place, the last first.
template <typename PushRound>
VARVE_INLINE inline void EncodeRounds(const PushRound& push, Stream* first, Stream* second) {
  Stream a = *first;
  Stream b = *second;
  const ptrdiff_t gap = b.end - a.end;
  for (auto rounds = std::min(a.end - a.begin, b.end - b.begin) / kRoundSymbols; rounds > 0;
       --rounds) {
    a.end -= kRoundSymbols;
    push(a.end, &a.bits, &a.count);
    push(a.end + gap, &b.bits, &b.count);
    Flush(a.bits, &a.count, &a.to);
    Flush(b.bits, &b.count, &b.to);
  }
  b.end = a.end + gap;
  *first = a;
  *second = b;
}

template <typename PushRound>
VARVE_INLINE inline void EncodeAll(const uint64_t* table, const PushRound& push, Stream* streams) {
  for (size_t s = 0; s < kNumStreams; s += 2) EncodeRounds(push, streams + s, streams + s + 1);
  for (size_t s = 0; s < kNumStreams; ++s) {
    while (streams[s].end > streams[s].begin) EncodeLast(table, streams + s);
  }
}

constexpr auto EncodeSingly = [](const uint64_t* table, Stream* streams) VARVE_INLINE {
  const auto push = [=](const uint8_t* at, uint64_t* bits, uint64_t* count) VARVE_INLINE {
#pragma GCC unroll 4
    for (ptrdiff_t k = kRoundSymbols - 1; k >= 0; --k) Push(table[at[k]], bits, count);
  };
  EncodeAll(table, push, streams);
};

// `pairs` has the number of each pair, as far from its start as the pair is from the start of
// `symbols`.
constexpr auto EncodeInPairs = [](const uint64_t* table, const uint64_t* pair_table,
                                  const uint8_t* symbols, const uint8_t* pairs,
                                  Stream* streams) VARVE_INLINE {
  for (size_t s = 0; s < kNumStreams; ++s) {
    if ((streams[s].end - symbols) % 2 != 0) EncodeLast(table, streams + s);
  }
  const auto push = [=](const uint8_t* at, uint64_t* bits, uint64_t* count) VARVE_INLINE {
    const uint8_t* const pair = pairs + (at - symbols);
    Push(pair_table[Load16(pair + 2)], bits, count);
    Push(pair_table[Load16(pair)], bits, count);
  };
  EncodeAll(table, push, streams);
};

// Eight symbols of a flat code are whole bytes.
constexpr auto EncodeFlat = [](FlatCode flat, const uint64_t* table, Stream* streams) VARVE_INLINE {
  for (size_t s = 0; s < kNumStreams; ++s) {
    Stream stream = streams[s];  // in registers: a store of codes might change the other one
    for (; stream.end - stream.begin >= 8; stream.to += flat.width) {
      stream.end -= 8;
      uint64_t symbols;
      std::memcpy(&symbols, stream.end, sizeof(symbols));
      const uint64_t codes = PackFlat(flat, symbols);
      std::memcpy(stream.to, &codes, sizeof(codes));
    }
    while (stream.end > stream.begin) EncodeLast(table, &stream);
    streams[s] = stream;
  }
};

// Marks the end with a one and stores the last bits. Returns the end.
uint8_t* Close(Stream* stream) {
  Push(uint64_t{1} << 63 | 1, &stream->bits, &stream->count);
  stream->count = (stream->count & 63) + 7;
  const uint64_t word = stream->bits >> (64 + 7 - stream->count);
  std::memcpy(stream->to, &word, sizeof(word));
  return stream->to + stream->count / 8;
}

struct Range {
  uint8_t lowest = 0;
  uint8_t highest = 0;
  uint8_t noise = 0;  // bits that are not the same in all symbols
};
Range RangeOf(CpuLevel level, std::span<const uint8_t> in) {
  Range range;
  RunAt(
      level,
      [](In from, size_t n, Range* to) VARVE_INLINE {
        uint8_t lowest = 255;  // members of a struct keep the compiler from using vectors
        uint8_t highest = 0;
        uint8_t all = 255;
        uint8_t any = 0;
        for (size_t i = 0; i < n; ++i) {
          lowest = std::min(lowest, from[i]);
          highest = std::max(highest, from[i]);
          all = static_cast<uint8_t>(all & from[i]);
          any = static_cast<uint8_t>(any | from[i]);
        }
        *to = {.lowest = lowest, .highest = highest, .noise = static_cast<uint8_t>(all ^ any)};
      },
      in.data(), in.size(), &range);
  return range;
}

// True when a sample of symbols has all of num_values equally often. It looks at the chance that
// two symbols are equal. That chance is higher for symbols that a code of several lengths would
// make smaller by a thousandth.
bool LooksFlat(std::span<const uint8_t> in, size_t num_values) {
  constexpr size_t kRunBytes = 64;
  constexpr size_t kNumRuns = 128;
  constexpr size_t kSampleBytes = kRunBytes * kNumRuns;
  uint8_t sample[kSampleBytes];
  for (size_t r = 0; r < kNumRuns; ++r) {
    std::memcpy(sample + r * kRunBytes, in.data() + (in.size() - kRunBytes) * r / (kNumRuns - 1),
                kRunBytes);
  }
  uint64_t equal = 0;
  for (const uint64_t count : CountBytes(sample)) equal += count * (count - 1);
  return 100 * equal * num_values < 101 * kSampleBytes * (kSampleBytes - 1);
}

// Counts each symbol that differs from `symbol` only in bits of `noise` as equally frequent.
ByteCounts FlatCounts(size_t n, uint8_t noise, uint8_t symbol) {
  ByteCounts counts{};
  const size_t num_values = size_t{1} << std::popcount(noise);
  for (size_t v = 0; v < counts.size(); ++v) {
    if (((v ^ symbol) & ~noise) == 0) counts[v] = static_cast<uint32_t>(n / num_values);
  }
  return counts;
}

}  // namespace

ByteCounts HuffmanEncoder::Look(std::span<const uint8_t> in) {
  in_ = in;
  paired_ = false;
  if (in.size() < kMinPaired) return CountBytes(in);
  const Range range = RangeOf(level_, in);
  lowest_ = range.lowest;
  paired_ = static_cast<size_t>(range.highest - range.lowest) < kPairRange;
  if (paired_) return CountPairs();
  const size_t num_values = size_t{1} << std::popcount(range.noise);
  const bool flat = num_values < 256 && LooksFlat(in, num_values);
  return flat ? FlatCounts(in.size(), range.noise, range.lowest) : CountBytes(in);
}

ByteCounts HuffmanEncoder::CountPairs() {
  const size_t num_pairs = in_.size() / 2;
  pairs_.resize(num_pairs);
  RunAt(
      level_,
      [](In from, size_t n, uint8_t lowest, uint16_t* __restrict to) VARVE_INLINE {
        for (size_t i = 0; i < n; ++i) {
          uint16_t pair;
          std::memcpy(&pair, from + 2 * i, sizeof(pair));
          pair = static_cast<uint16_t>(pair - lowest * 0x0101);
          to[i] = static_cast<uint16_t>(pair % 256 + pair / 256 * kPairRange);
        }
      },
      in_.data(), num_pairs, lowest_, pairs_.data());
  std::array<std::array<uint32_t, kPairRange * kPairRange>, 2> counts{};
  for (size_t i = 0; i + 2 <= num_pairs; i += 2) {
    ++counts[0][pairs_[i]];
    ++counts[1][pairs_[i + 1]];
  }
  if (num_pairs % 2 != 0) ++counts[0][pairs_.back()];
  ByteCounts sum{};
  for (size_t pair = 0; pair < counts[0].size(); ++pair) {
    const uint32_t count = counts[0][pair] + counts[1][pair];
    if (count == 0) continue;
    sum[lowest_ + pair % kPairRange] += count;
    sum[lowest_ + pair / kPairRange] += count;
  }
  if (in_.size() % 2 != 0) ++sum[in_.back()];
  return sum;
}

void HuffmanEncoder::SetCode(const HuffmanCode& code) {
  flat_ = FlatCodeOf(code);
  // Codes count up from the longest ones. Symbols of one length are in order.
  std::array<uint64_t, kMaxCodeBits + 1> next{};  // by length: its next code, with zeros behind it
  for (const uint8_t bits : code.bits) ++next[bits];
  uint64_t begin = 0;
  for (size_t bits = kMaxCodeBits; bits > 0; --bits) {
    begin += std::exchange(next[bits], begin) << (kMaxCodeBits - bits);
  }
  for (size_t symbol = 0; symbol < code.bits.size(); ++symbol) {
    const size_t bits = code.bits[symbol];
    if (bits == 0) continue;
    table_[symbol] = next[bits] << (64 - kMaxCodeBits) | bits;
    next[bits] += uint64_t{1} << (kMaxCodeBits - bits);
  }
  if (paired_ && flat_.width == 0) SetPairs(code);
}

void HuffmanEncoder::SetPairs(const HuffmanCode& code) {
  const size_t range = std::min(kPairRange, code.bits.size() - lowest_);
  for (size_t second = 0; second < range; ++second) {
    const uint64_t second_bits = code.bits[lowest_ + second];
    if (second_bits == 0) continue;
    const uint64_t second_code = table_[lowest_ + second] - second_bits;
    for (size_t first = 0; first < range; ++first) {
      const uint64_t first_bits = code.bits[lowest_ + first];
      pair_table_[second * kPairRange + first] =
          table_[lowest_ + first] + second_bits + (second_code >> first_bits);
    }
  }
}

std::span<const std::byte> HuffmanEncoder::Encode() {
  const size_t num_streams = in_.size() < kMinFourStreams ? 1 : kNumStreams;
  const size_t segment = (in_.size() + num_streams - 1) / num_streams;
  const size_t room = segment * kMaxCodeBits / 8 + 16;
  const size_t sizes_bytes = sizeof(uint16_t) * (num_streams - 1);
  streams_.Truncate(0);
  uint8_t* const out = streams_.Room(sizes_bytes + kNumStreams * room);
  Stream streams[kNumStreams];  // those that there are not have no symbols
  for (size_t s = 0; s < kNumStreams; ++s) {
    const uint8_t* const begin = in_.data() + std::min(s * segment, in_.size());
    const uint8_t* const end = in_.data() + std::min((s + 1) * segment, in_.size());
    streams[s] = {.begin = begin, .end = end, .to = out + sizes_bytes + s * room};
  }
  if (flat_.width > 0) {
    RunAt(level_, EncodeFlat, flat_, table_.data(), &streams[0]);
  } else if (paired_) {
    RunAt(level_, EncodeInPairs, table_.data(), pair_table_.data(), in_.data(),
          reinterpret_cast<const uint8_t*>(pairs_.data()), &streams[0]);
  } else {
    RunAt(level_, EncodeSingly, table_.data(), &streams[0]);
  }
  uint8_t* at = out + sizes_bytes;
  for (size_t s = 0; s < num_streams; ++s) {
    const uint8_t* const from = out + sizes_bytes + s * room;
    const auto bytes = static_cast<size_t>(Close(&streams[s]) - from);
    std::memmove(at, from, bytes);
    at += bytes;
    const auto size = static_cast<uint16_t>(bytes);  // at most 2^15 * 11 bits
    if (s + 1 < num_streams) std::memcpy(out + s * sizeof(size), &size, sizeof(size));
  }
  streams_.Advance(static_cast<size_t>(at - out));
  return streams_.bytes();
}

}  // namespace varve::internal
