// SPDX-License-Identifier: Apache-2.0
//
// What the digest kernels need of XXH3's secret, which its seed decides. Plain values, passed to
// kernels by value; functions are stateless.
#pragma once

#include <cstdint>

namespace varve::gpu {

// Little-endian words of the secret of 192 bytes.
struct DigestKeys {
  uint64_t secret[24];      // words of stripe s begin at s; those of the scramble at 16
  uint64_t last_stripe[8];  // from byte 121
  uint64_t merge_lo[8];     // from byte 11
  uint64_t merge_hi[8];     // from byte 117
};

DigestKeys MakeDigestKeys(uint64_t seed);

}  // namespace varve::gpu
