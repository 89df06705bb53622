// SPDX-License-Identifier: Apache-2.0
//
// What the digest kernels need to begin with: XXH3's first accumulators, and its secret, which
// follows from the seed. These are plain values, passed to kernels by value. There a lane can take
// any of them by its number. Functions are stateless.
#pragma once

#include <cstdint>

namespace varve::internal::gpu {

inline constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
inline constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                          kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
                          kPrime64_5 = 0x27D4EB2F165667C5;

struct DigestKeys {
  uint64_t first[8];  // accumulators
  // Little-endian words of the secret of 192 bytes.
  uint64_t secret[24];      // the words of stripe s start at s, those of the scramble at 16
  uint64_t last_stripe[8];  // from byte 121
  uint64_t merge_lo[8];     // from byte 11
  uint64_t merge_hi[8];     // from byte 117
};

DigestKeys MakeDigestKeys(uint64_t seed);

}  // namespace varve::internal::gpu
