// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

// The dispatching functions use the vectors that this processor has. A distribution compiles the
// plain functions for the least capable processor.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif
// The state of a stream is a complete type only so.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <cinttypes>
#include <cstdio>

namespace varve {
Digest ComputeDigest(uint64_t seed, std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
  return {.lo = hash.low64, .hi = hash.high64};
}

std::string ToHex(const Digest& digest) {
  return internal::Hex16(digest.hi) + internal::Hex16(digest.lo);
}

}  // namespace varve

namespace varve::internal {

std::string Hex16(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, number);
  return text;
}

struct DigestStream::State {
  XXH3_state_t xxh;
};

DigestStream::DigestStream(uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_128bits_reset_withSeed(&state_->xxh, seed);
}

DigestStream::~DigestStream() = default;

void DigestStream::Add(std::span<const std::byte> data) {
  XXH3_128bits_update(&state_->xxh, data.data(), data.size());
}

Digest DigestStream::Get() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {.lo = hash.low64, .hi = hash.high64};
}

}  // namespace varve::internal
