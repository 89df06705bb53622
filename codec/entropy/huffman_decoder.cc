// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/huffman_decoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/coding.h"

namespace varve::internal {

namespace {

constexpr size_t kNumStreams = 4;
constexpr unsigned kLengthMask = 63;
constexpr unsigned kSymbolShift = 6;
constexpr unsigned kCountShift = 30;
constexpr size_t kMaxSymbols = 3;
// The looks between two loads. 5 * 11 bits and 8 that were used before leave one of 64.
constexpr size_t kLooks = 5;
constexpr ptrdiff_t kRoundRoom = kMaxSymbols * kLooks + 1;  // a look writes four bytes
constexpr ptrdiff_t kRoundBytes = 7;

// A stream is read from its end. `bits` holds the next bits at its top, and a one below the last
// loaded bit. The zeros below that one tell how many bits were used.
struct Stream {
  const uint8_t* begin;
  const uint8_t* at;  // of the last load
  uint64_t bits;
  uint8_t* to;
  uint8_t* end;
};

VARVE_INLINE inline uint64_t Load64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The highest set bit marks the end of a stream.
bool Open(std::span<const std::byte> in, std::span<uint8_t> out, Stream* stream) {
  if (in.size() < 8 || in.back() == std::byte{0}) return false;
  stream->begin = reinterpret_cast<const uint8_t*>(in.data());
  stream->at = stream->begin + in.size() - 8;
  const uint64_t bits = Load64(stream->at);
  stream->bits = (bits | 1) << (std::countl_zero(bits) + 1);
  stream->to = out.data();
  stream->end = out.data() + out.size();
  return true;
}

// Returns the rounds that neither read before the start of a stream nor write past its end.
template <size_t kStreams>
VARVE_INLINE inline size_t SafeRounds(const Stream* streams) {
  ptrdiff_t rounds = PTRDIFF_MAX;
  for (size_t s = 0; s < kStreams; ++s) {
    rounds = std::min({rounds, (streams[s].end - streams[s].to) / kRoundRoom,
                       (streams[s].at - streams[s].begin) / kRoundBytes});
  }
  return static_cast<size_t>(rounds);
}

template <size_t kStreams>
VARVE_INLINE inline void DecodeRounds(const uint32_t* table, unsigned shift, Stream* streams) {
  uint64_t bits[kStreams];
  uint8_t* to[kStreams];
  const uint8_t* at[kStreams];
  for (size_t rounds = SafeRounds<kStreams>(streams); rounds > 0;
       rounds = SafeRounds<kStreams>(streams)) {
    for (size_t s = 0; s < kStreams; ++s) {
      bits[s] = streams[s].bits;
      to[s] = streams[s].to;
      at[s] = streams[s].at;
    }
    for (; rounds > 0; --rounds) {
#pragma GCC unroll 5
      for (size_t look = 0; look < kLooks; ++look) {
#pragma GCC unroll 4
        for (size_t s = 0; s < kStreams; ++s) {
          const uint32_t entry = table[bits[s] >> shift];
          const uint32_t symbols = std::rotr(entry, kSymbolShift);
          bits[s] <<= entry & kLengthMask;
          std::memcpy(to[s], &symbols, sizeof(symbols));
          to[s] += entry >> kCountShift;
        }
      }
#pragma GCC unroll 4
      for (size_t s = 0; s < kStreams; ++s) {
        const auto used = static_cast<unsigned>(std::countr_zero(bits[s]));
        at[s] -= used / 8;
        bits[s] = (Load64(at[s]) | 1) << (used % 8);
      }
    }
    for (size_t s = 0; s < kStreams; ++s) {
      streams[s].bits = bits[s];
      streams[s].to = to[s];
      streams[s].at = at[s];
    }
  }
}

// Eight symbols of a flat code are whole bytes, so each group of eight starts at the same bit of a
// byte.
constexpr auto DecodeFlat = [](FlatCode flat, Stream* to_stream) VARVE_INLINE {
  Stream stream = *to_stream;  // a store of symbols might change the other one
  const auto used = static_cast<unsigned>(std::countr_zero(stream.bits));
  const unsigned unused = 64 - 8 * flat.width;
  if (used > unused) return;
  const auto rounds = std::min((stream.end - stream.to) / 8,
                               (stream.at - stream.begin) / static_cast<ptrdiff_t>(flat.width));
  for (ptrdiff_t i = 0; i < rounds; ++i) {
    const uint64_t symbols = UnpackFlat(flat, Load64(stream.at) >> (unused - used));
    std::memcpy(stream.to, &symbols, sizeof(symbols));
    stream.to += sizeof(symbols);
    stream.at -= flat.width;
  }
  *to_stream = stream;
};

// Decodes symbol by symbol to the end, which must also be the end of the bits.
bool DecodeRest(const uint32_t* one, Stream stream) {
  auto used = static_cast<size_t>(std::countr_zero(stream.bits));
  while (stream.to < stream.end) {
    const size_t bytes = std::min(used / 8, static_cast<size_t>(stream.at - stream.begin));
    stream.at -= bytes;
    used -= 8 * bytes;
    if (used >= 64) return false;
    const uint32_t entry = one[(Load64(stream.at) << used) >> (64 - kMaxCodeBits)];
    used += entry & kLengthMask;
    *stream.to++ = static_cast<uint8_t>(entry >> kSymbolShift);
  }
  return static_cast<size_t>(stream.at - stream.begin) * 8 + 64 == used;
}

// Adds one more symbol to every entry in which it fits.
constexpr auto AddSymbol = [](const uint32_t* __restrict one, unsigned symbol_shift,
                              uint32_t* __restrict table) VARVE_INLINE {
  for (uint32_t i = 0; i < uint32_t{1} << kMaxCodeBits; ++i) {
    const uint32_t used = table[i] & kLengthMask;
    const uint32_t next = one[(i << used) & ((1u << kMaxCodeBits) - 1)];
    const uint32_t length = next & kLengthMask;
    const uint32_t symbol = (next >> kSymbolShift) & 0xFFu;
    const uint32_t more = length | symbol << symbol_shift | 1u << kCountShift;
    // This is a sum instead of an "or", because lengths and counts add up.
    table[i] += used + length <= kMaxCodeBits ? more : 0u;
  }
};

}  // namespace

void HuffmanDecoder::SetCode(const HuffmanCode& code) {
  // Codes count up from the longest ones. Symbols of one length are in order.
  std::array<size_t, kMaxCodeBits + 1> at{};  // by length: where its next code starts
  for (const uint8_t bits : code.bits) ++at[bits];
  size_t begin = 0;
  for (size_t bits = kMaxCodeBits; bits > 0; --bits) {
    begin += std::exchange(at[bits], begin) << (kMaxCodeBits - bits);
  }
  for (size_t symbol = 0; symbol < code.bits.size(); ++symbol) {
    const size_t bits = code.bits[symbol];
    if (bits == 0) continue;
    const size_t entries = size_t{1} << (kMaxCodeBits - bits);
    const auto entry = static_cast<uint32_t>(bits | symbol << kSymbolShift | 1u << kCountShift);
    std::fill_n(one_.begin() + static_cast<ptrdiff_t>(at[bits]), entries, entry);
    at[bits] += entries;
  }
  flat_ = FlatCodeOf(code);
  if (flat_.width > 0) return;
  table_ = one_;
  for (unsigned c = 1; c < kMaxSymbols; ++c) {
    RunAt(level_, AddSymbol, one_.data(), kSymbolShift + 8 * c, table_.data());
  }
}

bool HuffmanDecoder::Decode(std::span<const std::byte> in, std::span<uint8_t> out) const {
  ByteReader reader(in);
  std::array<uint16_t, kNumStreams - 1> sizes;
  if (!reader.Take(&sizes)) return false;
  const size_t segment = (out.size() + kNumStreams - 1) / kNumStreams;
  if (out.size() < kNumStreams * kNumStreams) return false;
  Stream streams[kNumStreams];
  for (size_t s = 0; s < kNumStreams; ++s) {
    std::span<const std::byte> body;
    const bool last = s + 1 == kNumStreams;
    if (!reader.TakeSpan(last ? reader.rest().size() : sizes[s], &body)) return false;
    const std::span<uint8_t> to = out.subspan(s * segment);
    if (!Open(body, last ? to : to.first(segment), &streams[s])) return false;
  }
  if (flat_.width > 0) {
    for (Stream& stream : streams) RunAt(level_, DecodeFlat, flat_, &stream);
  } else {
    RunAt(
        level_,
        [](const uint32_t* table, unsigned shift, Stream* all) VARVE_INLINE {
          DecodeRounds<kNumStreams>(table, shift, all);
          for (size_t s = 0; s < kNumStreams; ++s) DecodeRounds<1>(table, shift, all + s);
        },
        table_.data(), shift_, &streams[0]);
  }
  return std::all_of(std::begin(streams), std::end(streams),
                     [&](const Stream& stream) { return DecodeRest(one_.data(), stream); });
}

}  // namespace varve::internal
