// SPDX-License-Identifier: Apache-2.0
#include "codec/entropy/rans.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/coding.h"
#include "codec/entropy/rans_kernel.h"
#include "codec/entropy/size_error.h"

namespace varve::internal {

namespace {

// The sample that the code is made for: runs of neighbours, evenly spread.
constexpr size_t kRunBytes = 64;
constexpr size_t kNumRuns = 64;

constexpr size_t kBytesForTwoGroups = size_t{24} << 10;
constexpr size_t kBytesForFourGroups = size_t{128} << 10;

// The lanes code rounds of symbols. The states carry the last bytes, one for each lane at most.
struct Layout {
  Layout(size_t groups, size_t num_bytes)
      : num_groups(groups),
        num_lanes(groups * kRansGroupLanes),
        num_rounds((num_bytes - 1) / num_lanes),
        num_coded(num_rounds * num_lanes) {}
  size_t num_groups;
  size_t num_lanes;
  size_t num_rounds;
  size_t num_coded;  // bytes that the lanes code
};

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
  size_t num_groups = 0;
  std::array<uint32_t, 1 + kMaxRansGroups> sizes{};  // of the escapes and of the streams
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

Status TakeFront(ByteReader* reader, Front* front) {
  uint8_t num_groups = 0;
  VARVE_RETURN_IF_ERROR(TakeCode(reader, &front->code));
  if (!reader->Take(&num_groups)) return Status::Corruption("rANS states are cut short");
  if (num_groups != 1 && num_groups != 2 && num_groups != 4) {
    return Status::Corruption("rANS stream has " + std::to_string(num_groups) +
                              " groups, expected 1, 2 or 4");
  }
  front->num_groups = num_groups;
  std::span<const std::byte> low;
  std::span<const std::byte> high;
  bool fits = true;
  for (size_t s = 0; s <= num_groups; ++s) fits = fits && reader->Take(&front->sizes[s]);
  const size_t num_lanes = num_groups * kRansGroupLanes;
  if (!fits || !reader->TakeSpan(num_lanes, &low) || !reader->TakeSpan(num_lanes, &high)) {
    return Status::Corruption("rANS states are cut short");
  }
  std::memcpy(front->states.low.data(), low.data(), num_lanes);
  std::memcpy(front->states.high.data(), high.data(), num_lanes);
  return Status::Ok();
}

// Runs the lanes over the streams of a body. `limit` is the end of the bytes that may be read.
class LaneReader {
 public:
  LaneReader(CpuLevel level, const Front& front, const Layout& layout, const RansDecodeEnds& begins,
             const uint8_t* limit)
      : level_(level),
        layout_(layout),
        table_(front.code),
        states_(front.states),
        ends_(begins),
        limit_(limit) {}

  // Returns false when the streams are too short.
  bool Decode(uint8_t* out) {
    for (size_t left = layout_.num_rounds; left > 0;) {
      size_t rounds = std::min(SafeRounds(), left);
      if (rounds >= std::min(kTailRounds, left)) {
        DecodeRansRounds(level_, table_, layout_.num_groups, rounds, &states_, &ends_, out);
      } else {
        rounds = std::min(kTailRounds, left);
        if (!DecodeTail(rounds, out)) return false;
      }
      left -= rounds;
      out += rounds * layout_.num_lanes;
    }
    return true;
  }
  const RansStates& states() const { return states_; }
  const RansDecodeEnds& ends() const { return ends_; }

 private:
  // Fewer rounds are decoded from a copy that has zeros behind it.
  static constexpr size_t kTailRounds = 8;

  size_t Left(const uint8_t* from) const { return static_cast<size_t>(limit_ - from); }

  // Returns the rounds that read nothing behind the limit.
  size_t SafeRounds() const {
    size_t rounds = Left(ends_.escapes) / layout_.num_lanes;
    for (size_t g = 0; g < layout_.num_groups; ++g) {
      rounds = std::min(rounds, Left(ends_.streams[g]) / kRansGroupLanes);
    }
    return rounds;
  }

  bool DecodeTail(size_t rounds, uint8_t* out) {
    std::array<std::array<uint8_t, kTailRounds * kRansGroupLanes>, kMaxRansGroups> streams{};
    std::array<uint8_t, kTailRounds * kMaxRansLanes> escapes{};
    RansDecodeEnds copies{};
    for (size_t g = 0; g < layout_.num_groups; ++g) {
      std::memcpy(streams[g].data(), ends_.streams[g],
                  std::min(Left(ends_.streams[g]), streams[g].size()));
      copies.streams[g] = streams[g].data();
    }
    std::memcpy(escapes.data(), ends_.escapes, std::min(Left(ends_.escapes), escapes.size()));
    copies.escapes = escapes.data();
    DecodeRansRounds(level_, table_, layout_.num_groups, rounds, &states_, &copies, out);
    bool fits = Advance(static_cast<size_t>(copies.escapes - escapes.data()), &ends_.escapes);
    for (size_t g = 0; g < layout_.num_groups; ++g) {
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
  Layout layout_;
  RansDecodeTable table_;
  RansStates states_;
  RansDecodeEnds ends_;
  const uint8_t* limit_;
};

// After the last round each state is what the encoder began with: 256 and a byte of the tail.
bool TakeTail(const RansStates& states, size_t num_lanes, std::span<uint8_t> tail) {
  std::memcpy(tail.data(), states.low.data(), tail.size());
  bool good = true;
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    good &= states.high[lane] == 1 && (lane < tail.size() || states.low[lane] == 0);
  }
  return good;
}

}  // namespace

size_t RansGroupsFor(size_t num_bytes) {
  if (num_bytes >= kBytesForFourGroups) return 4;
  return num_bytes >= kBytesForTwoGroups ? 2 : 1;
}

size_t RansEncoder::Encode(std::span<const uint8_t> in, std::span<std::byte> out) {
  if (in.empty()) return 0;
  return EncodeWith(BestRansCode(SampleCounts(in)).code, RansGroupsFor(in.size()), in, out);
}

size_t RansEncoder::EncodeWith(const RansCode& code, size_t num_groups, std::span<const uint8_t> in,
                               std::span<std::byte> out) {
  if (in.empty()) return 0;
  const Layout layout(num_groups, in.size());
  const std::span<const uint8_t> tail = in.subspan(layout.num_coded);
  RansStates states;
  states.low.fill(0);
  states.high.fill(1);
  std::copy(tail.begin(), tail.end(), states.low.begin());
  // Each stream is written to the end of its part of the room. The kernels may overwrite bytes
  // before it.
  const size_t stream_room = kRansEncodeSlack + layout.num_rounds * kRansGroupLanes;
  const size_t escape_room = kRansEncodeSlack + layout.num_coded;
  room_.Truncate(0);
  uint8_t* const room = room_.Room(num_groups * stream_room + escape_room);
  RansEncodeEnds ends{};
  for (size_t g = 0; g < num_groups; ++g) ends.streams[g] = room + (g + 1) * stream_room;
  ends.escapes = room + num_groups * stream_room + escape_room;
  const RansEncodeEnds behind = ends;
  EncodeRansRounds(level_, RansEncodeTable(code), num_groups, in.data(), layout.num_rounds, &states,
                   &ends);

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
  writer.Put(num_groups, 1);
  put_size(ends.escapes, behind.escapes);
  for (size_t g = 0; g < num_groups; ++g) put_size(ends.streams[g], behind.streams[g]);
  put(states.low.data(), states.low.data() + layout.num_lanes);
  put(states.high.data(), states.high.data() + layout.num_lanes);
  put(ends.escapes, behind.escapes);
  for (size_t g = 0; g < num_groups; ++g) put(ends.streams[g], behind.streams[g]);
  if (code.low_bits > 0) {
    // The streams have been copied out of the room. It has space for half of all bytes and more.
    PackLowBits(level_, code.low_bits, in.data(), layout.num_coded, room);
    put(room, room + layout.num_coded / 8 * code.low_bits);
  }
  return writer.Finish();
}

Status RansDecoder::Decode(std::span<const std::byte> body, std::span<uint8_t> out) const {
  if (out.empty()) return Status::Corruption("rANS stream of no bytes");
  ByteReader reader(body);
  Front front;
  VARVE_RETURN_IF_ERROR(TakeFront(&reader, &front));
  const Layout layout(front.num_groups, out.size());
  const size_t low_bytes = layout.num_coded / 8 * front.code.low_bits;
  uint64_t expected = low_bytes;
  for (const uint32_t size : front.sizes) expected += size;
  if (reader.rest().size() != expected) {
    return SizeError("rANS streams have", reader.rest().size(), expected);
  }
  const auto* at = reinterpret_cast<const uint8_t*>(reader.rest().data());
  const uint8_t* const limit = at + expected;
  RansDecodeEnds begins{};
  RansDecodeEnds ends{};
  begins.escapes = at;
  ends.escapes = at += front.sizes[0];
  for (size_t g = 0; g < front.num_groups; ++g) {
    begins.streams[g] = at;
    ends.streams[g] = at += front.sizes[1 + g];
  }
  LaneReader lanes(level_, front, layout, begins, limit);
  if (!lanes.Decode(out.data()) ||
      !TakeTail(lanes.states(), layout.num_lanes, out.subspan(layout.num_coded)) ||
      lanes.ends().escapes != ends.escapes || lanes.ends().streams != ends.streams) {
    return Status::Corruption("rANS streams do not end where their symbols do");
  }
  if (low_bytes > 0) {
    AddLowBits(level_, front.code.low_bits, at, layout.num_coded, out.data());
  }
  return Status::Ok();
}

}  // namespace varve::internal
