// SPDX-License-Identifier: Apache-2.0
//
// Estimates from a sample how small a plane will get, so that the encoder tries one coder instead
// of all. Estimates steer only size and speed, never correctness. Functions are stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "codec/entropy/stream_format.h"
#include "varve/options.h"

namespace varve::internal {

// What a sample of a plane says.
struct PlaneStats {
  std::array<uint32_t, 256> counts{};
  uint32_t total = 0;
  uint32_t groups = 0;       // whole groups of 8 neighbours in the sample
  uint32_t zero_groups = 0;  // those of them that are all zero
};

// How much rANS streams are wanted.
enum class RansUse {
  kNever,
  kFew,     // codes of few symbols, where these are read faster than zstd's
  kFirst,   // where they are read faster than all others that compress
  kAlways,  // even where zstd's would be smaller. Only sparse ones may replace them
};
RansUse RansUseAt(CpuLevel level, Entropy entropy);

// Adds neighbouring bytes to the sample. The sum of all samples is at most kMaxSample.
inline constexpr size_t kMaxSample = 8192;
void AddSample(const uint8_t* bytes, size_t n, PlaneStats* stats);

// The cheapest coder for a plane, and the size it gives in bits for each byte of the plane.
struct Estimate {
  StreamCoder coder = StreamCoder::kRaw;
  double bits = 8.0;
};
// `num_bytes` is the size of the whole plane. Tables and headers weigh more on a short one.
Estimate EstimateStream(const PlaneStats& stats, size_t num_bytes, RansUse rans);

// True when no coder can gain. EstimateStream would choose raw, but this costs a fifth of it.
bool LooksRandom(const PlaneStats& stats);

}  // namespace varve::internal
