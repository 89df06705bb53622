// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/rans.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/coding.h"
#include "codec/entropy/rans_kernel.h"

namespace varve::internal {

namespace {

// The sample that the code is made for: runs of neighbours, evenly spread.
constexpr size_t kRunBytes = 64;
constexpr size_t kNumRuns = 128;

// Rounds of symbols, which the lanes code. The states carry the last 1 to kRansLanes bytes.
size_t NumRounds(size_t num_bytes) { return (num_bytes - 1) / kRansLanes; }
size_t LowBytes(size_t num_rounds, unsigned low_bits) {
  return num_rounds * kRansLanes / 8 * low_bits;
}

ByteCounts SampleCounts(std::span<const uint8_t> in) {
  if (in.size() <= 2 * kRunBytes * kNumRuns) return CountBytes(in);
  std::array<uint8_t, kRunBytes * kNumRuns> sample;
  const size_t last = in.size() - kRunBytes;
  for (size_t r = 0; r < kNumRuns; ++r) {
    std::memcpy(&sample[r * kRunBytes], &in[last * r / (kNumRuns - 1)], kRunBytes);
  }
  return CountBytes(sample);
}

const std::byte* AsBytes(const uint8_t* from) { return reinterpret_cast<const std::byte*>(from); }

// What the front of a body says.
struct Front {
  RansCode code;
  std::array<uint32_t, 1 + kRansGroups> sizes{};  // of the escapes and of the streams
  RansStates states;
};

Status TakeCode(ByteReader* reader, RansCode* code) {
  std::array<uint8_t, 3> fields;
  std::span<const std::byte> frequencies;
  if (!reader->Take(&fields) || !reader->TakeSpan(fields[2], &frequencies)) {
    return Status::Corruption("rANS code is cut short");
  }
  const size_t n = fields[2];
  if (fields[0] > kMaxRansLowBits || n == 0 || n > kMaxRansSymbols) {
    return Status::Corruption("rANS code has " + std::to_string(n) + " symbols and " +
                              std::to_string(fields[0]) + " low bits, expected 1 to " +
                              std::to_string(kMaxRansSymbols) + " and at most " +
                              std::to_string(kMaxRansLowBits));
  }
  *code = {.low_bits = fields[0], .first = fields[1], .num_symbols = n};
  size_t sum = 0;
  for (size_t i = 0; i < n; ++i) {
    code->frequency[i] = std::to_integer<uint8_t>(frequencies[i]);
    sum += code->frequency[i];
  }
  if (code->frequency[0] == 0 || sum >= kRansTotal) {
    return Status::Corruption("rANS frequencies start with " + std::to_string(code->frequency[0]) +
                              " and sum up to " + std::to_string(sum) +
                              ", expected 1 or more and at most " + std::to_string(kRansTotal - 1));
  }
  code->frequency[n] = static_cast<uint8_t>(kRansTotal - sum);
  return Status::Ok();
}

// Runs the lanes over the streams of a body. `limit` is the end of the bytes that may be read.
class LaneReader {
 public:
  LaneReader(CpuLevel level, const RansCode& code, const RansStates& states,
             const RansDecodeEnds& begins, const uint8_t* limit)
      : level_(level), table_(code), states_(states), ends_(begins), limit_(limit) {}

  // False when the streams are too short.
  bool Decode(size_t num_rounds, uint8_t* out) {
    while (num_rounds > 0) {
      const size_t safe = std::min(SafeRounds(), num_rounds);
      if (safe >= kTailRounds) {
        DecodeRansRounds(level_, table_, safe, &states_, &ends_, out);
        num_rounds -= safe;
        out += safe * kRansLanes;
        continue;
      }
      const size_t rounds = std::min(kTailRounds, num_rounds);
      if (!DecodeTail(rounds, out)) return false;
      num_rounds -= rounds;
      out += rounds * kRansLanes;
    }
    return true;
  }
  const RansStates& states() const { return states_; }
  const RansDecodeEnds& ends() const { return ends_; }

 private:
  // Fewer rounds are decoded from a copy that has zeros behind it.
  static constexpr size_t kTailRounds = 8;

  size_t Left(const uint8_t* from) const { return static_cast<size_t>(limit_ - from); }

  size_t SafeRounds() const {
    size_t rounds = Left(ends_.escapes) / kRansLanes;
    for (const uint8_t* const stream : ends_.streams) {
      rounds = std::min(rounds, Left(stream) / kRansGroupLanes);
    }
    return rounds;
  }

  bool DecodeTail(size_t rounds, uint8_t* out) {
    std::array<std::array<uint8_t, kTailRounds * kRansGroupLanes>, kRansGroups> streams{};
    std::array<uint8_t, kTailRounds * kRansLanes> escapes{};
    RansDecodeEnds copies;
    for (size_t g = 0; g < kRansGroups; ++g) {
      std::memcpy(streams[g].data(), ends_.streams[g],
                  std::min(Left(ends_.streams[g]), streams[g].size()));
      copies.streams[g] = streams[g].data();
    }
    std::memcpy(escapes.data(), ends_.escapes, std::min(Left(ends_.escapes), escapes.size()));
    copies.escapes = escapes.data();
    DecodeRansRounds(level_, table_, rounds, &states_, &copies, out);
    bool fits = Advance(static_cast<size_t>(copies.escapes - escapes.data()), &ends_.escapes);
    for (size_t g = 0; g < kRansGroups; ++g) {
      fits &=
          Advance(static_cast<size_t>(copies.streams[g] - streams[g].data()), &ends_.streams[g]);
    }
    return fits;
  }

  bool Advance(size_t num_bytes, const uint8_t** from) const {
    if (num_bytes > Left(*from)) return false;
    *from += num_bytes;
    return true;
  }

  CpuLevel level_;
  RansDecodeTable table_;
  RansStates states_;
  RansDecodeEnds ends_;
  const uint8_t* limit_;
};

// After the last symbol each state is what the encoder began with: 256 and a byte of the tail.
bool TakeTail(const RansStates& states, std::span<uint8_t> tail) {
  std::memcpy(tail.data(), states.low.data(), tail.size());
  return std::all_of(states.high.begin(), states.high.end(),
                     [](uint8_t high) { return high == 1; }) &&
         std::all_of(states.low.begin() + static_cast<ptrdiff_t>(tail.size()), states.low.end(),
                     [](uint8_t low) { return low == 0; });
}

}  // namespace

size_t RansEncoder::Encode(std::span<const uint8_t> in, std::span<std::byte> out) {
  if (in.empty()) return 0;
  return EncodeWith(BestRansCode(SampleCounts(in)).code, in, out);
}

size_t RansEncoder::EncodeWith(const RansCode& code, std::span<const uint8_t> in,
                               std::span<std::byte> out) {
  if (in.empty()) return 0;
  const size_t num_rounds = NumRounds(in.size());
  const std::span<const uint8_t> tail = in.subspan(num_rounds * kRansLanes);
  RansStates states;
  states.low.fill(0);
  states.high.fill(1);
  std::copy(tail.begin(), tail.end(), states.low.begin());
  // Each stream is written to the end of its part of the room. The kernels may overwrite bytes
  // before it.
  const size_t stream_room = kRansEncodeSlack + num_rounds * kRansGroupLanes;
  const size_t escape_room = kRansEncodeSlack + num_rounds * kRansLanes;
  room_.Truncate(0);
  uint8_t* const room = room_.Room(kRansGroups * stream_room + escape_room);
  RansEncodeEnds ends;
  for (size_t g = 0; g < kRansGroups; ++g) ends.streams[g] = room + (g + 1) * stream_room;
  ends.escapes = room + kRansGroups * stream_room + escape_room;
  const RansEncodeEnds behind = ends;
  EncodeRansRounds(level_, RansEncodeTable(code), in.data(), num_rounds, &states, &ends);

  ByteWriter writer(out);
  const auto put_size = [&](const uint8_t* from, const uint8_t* end) {
    writer.Put(static_cast<uint64_t>(end - from), 4);
  };
  const auto put = [&](const uint8_t* from, const uint8_t* end) {
    writer.PutBytes({AsBytes(from), AsBytes(end)});
  };
  writer.Put(code.low_bits, 1);
  writer.Put(code.first, 1);
  writer.Put(code.num_symbols, 1);
  put(code.frequency.data(), code.frequency.data() + code.num_symbols);
  put_size(ends.escapes, behind.escapes);
  for (size_t g = 0; g < kRansGroups; ++g) put_size(ends.streams[g], behind.streams[g]);
  put(states.low.data(), states.low.data() + states.low.size());
  put(states.high.data(), states.high.data() + states.high.size());
  put(ends.escapes, behind.escapes);
  for (size_t g = 0; g < kRansGroups; ++g) put(ends.streams[g], behind.streams[g]);
  const size_t low_bytes = LowBytes(num_rounds, code.low_bits);
  if (low_bytes > 0) {
    uint8_t* const low = room;  // the streams have been copied out of it
    PackLowBits(code.low_bits, in.data(), num_rounds * kRansLanes, low);
    put(low, low + low_bytes);
  }
  return writer.Finish();
}

Status RansDecoder::Decode(std::span<const std::byte> body, std::span<uint8_t> out) const {
  if (out.empty()) return Status::Corruption("rANS stream of no bytes");
  ByteReader reader(body);
  Front front;
  VARVE_RETURN_IF_ERROR(TakeCode(&reader, &front.code));
  if (!reader.Take(&front.sizes) || !reader.Take(&front.states.low) ||
      !reader.Take(&front.states.high)) {
    return Status::Corruption("rANS states are cut short");
  }
  const size_t num_rounds = NumRounds(out.size());
  const size_t low_bytes = LowBytes(num_rounds, front.code.low_bits);
  uint64_t expected = low_bytes;
  for (const uint32_t size : front.sizes) expected += size;
  if (reader.rest().size() != expected) {
    return Status::Corruption("rANS streams have " + std::to_string(reader.rest().size()) +
                              " bytes, expected " + std::to_string(expected));
  }
  const auto* at = reinterpret_cast<const uint8_t*>(reader.rest().data());
  const uint8_t* const limit = at + expected;
  RansDecodeEnds begins;
  RansDecodeEnds ends;
  begins.escapes = at;
  at += front.sizes[0];
  ends.escapes = at;
  for (size_t g = 0; g < kRansGroups; ++g) {
    begins.streams[g] = at;
    at += front.sizes[1 + g];
    ends.streams[g] = at;
  }
  LaneReader lanes(level_, front.code, front.states, begins, limit);
  if (!lanes.Decode(num_rounds, out.data()) ||
      !TakeTail(lanes.states(), out.subspan(num_rounds * kRansLanes)) ||
      lanes.ends().escapes != ends.escapes || lanes.ends().streams != ends.streams) {
    return Status::Corruption("rANS streams do not end where their symbols do");
  }
  if (low_bytes > 0) {
    AddLowBits(level_, front.code.low_bits, at, num_rounds * kRansLanes, out.data());
  }
  return Status::Ok();
}

}  // namespace varve::internal
