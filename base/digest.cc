// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

// The dispatching functions use the vectors that this processor has. A distribution compiles the
// plain functions for the least capable processor.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif
#include <xxhash.h>

#include <cinttypes>
#include <cstdio>

namespace varve {

Digest ComputeDigest(uint64_t seed, std::span<const std::byte> data) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data.data(), data.size(), seed);
  return {.lo = hash.low64, .hi = hash.high64};
}

std::string ToHex(const Digest& digest) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, digest.hi, digest.lo);
  return text;
}

}  // namespace varve
