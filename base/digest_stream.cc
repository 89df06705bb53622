// SPDX-License-Identifier: Apache-2.0
#include "base/digest_stream.h"

// The choice of functions is explained in digest.cc.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif
// Only this makes the state a complete type.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

namespace varve {

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

}  // namespace varve
