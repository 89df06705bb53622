// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of the rANS coder (rans.h): whole rounds of symbols, one for each lane. A lane is
// a coder of its own, whose state is a number of 16 bits. Lane i codes symbol i of every round. The
// lanes of a group share a stream of bytes. There are 1, 2 or 4 groups. Every level writes and
// reads the same bytes. Functions are stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "codec/entropy/rans_table.h"

namespace varve::internal {

inline constexpr size_t kMaxRansGroups = 4;
inline constexpr size_t kRansGroupLanes = 64;
inline constexpr size_t kMaxRansLanes = kMaxRansGroups * kRansGroupLanes;

// The states of all lanes, as many as there are. Between symbols a state is 256 or more, so `high`
// has no zeros.
struct alignas(64) RansStates {
  std::array<uint8_t, kMaxRansLanes> low;
  std::array<uint8_t, kMaxRansLanes> high;
};

// Encodes symbols from the last to the first. It writes what the decoder reads first last, so the
// pointers move down. A round writes at most kRansGroupLanes bytes to a stream and as many
// escapes as there are lanes. It may also change kRansEncodeSlack bytes before what it writes.
inline constexpr size_t kRansEncodeSlack = 64;
struct RansEncodeEnds {
  std::array<uint8_t*, kMaxRansGroups> streams;
  uint8_t* escapes;
};
void EncodeRansRounds(CpuLevel level, const RansEncodeTable& table, size_t num_groups,
                      const uint8_t* symbols, size_t num_rounds, RansStates* states,
                      RansEncodeEnds* ends);

// Decodes symbols from the first to the last. The bytes may be hostile. A round may read
// kRansGroupLanes bytes from where a stream is, and from where the escapes are as many bytes as
// there are lanes.
struct RansDecodeEnds {
  std::array<const uint8_t*, kMaxRansGroups> streams;
  const uint8_t* escapes;
};
void DecodeRansRounds(CpuLevel level, const RansDecodeTable& table, size_t num_groups,
                      size_t num_rounds, RansStates* states, RansDecodeEnds* ends,
                      uint8_t* symbols);

// The low bits of symbols, `bits` (1 to 4) of each, the first symbol in the lowest bits.
// PackLowBits writes n * bits / 8 bytes and may change kRansEncodeSlack bytes behind them. n is a
// multiple of 8. AddLowBits sets them in symbols that have zeros there.
void PackLowBits(CpuLevel level, unsigned bits, const uint8_t* symbols, size_t n, uint8_t* packed);
void AddLowBits(CpuLevel level, unsigned bits, const uint8_t* packed, size_t n, uint8_t* symbols);

}  // namespace varve::internal
