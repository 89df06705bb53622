// SPDX-License-Identifier: Apache-2.0
//
// What the digest kernels need from XXH3's secret, which follows from the seed. These are plain
// values, passed to kernels by value. Functions are stateless.
#pragma once

#include <cstdint>

namespace varve::internal::gpu {

// Little-endian words of the secret of 192 bytes.
struct DigestKeys {
  uint64_t secret[24];      // the words of stripe s start at s, those of the scramble at 16
  uint64_t last_stripe[8];  // from byte 121
  uint64_t merge_lo[8];     // from byte 11
  uint64_t merge_hi[8];     // from byte 117
};

DigestKeys MakeDigestKeys(uint64_t seed);

}  // namespace varve::internal::gpu
