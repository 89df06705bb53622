// SPDX-License-Identifier: Apache-2.0
#include "cuda/digest_keys.h"

#define XXH_STATIC_LINKING_ONLY  // for XXH3_generateSecret_fromSeed
#include <xxhash.h>

#include <cstring>

namespace varve::internal::gpu {

DigestKeys MakeDigestKeys(uint64_t seed) {
  unsigned char secret[sizeof DigestKeys::secret];
  static_assert(sizeof secret == XXH3_SECRET_DEFAULT_SIZE);
  XXH3_generateSecret_fromSeed(secret, seed);
  DigestKeys keys{.first = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2,
                            kPrime64_5, kPrime32_1}};
  // Where XXH3_hashLong_128b_internal takes these words from.
  constexpr size_t kStripe = 64;
  constexpr size_t kMergeBegin = 11;
  constexpr size_t kLastBegin = 7;
  std::memcpy(keys.secret, secret, sizeof keys.secret);
  std::memcpy(keys.last_stripe, secret + sizeof secret - kStripe - kLastBegin, kStripe);
  std::memcpy(keys.merge_lo, secret + kMergeBegin, kStripe);
  std::memcpy(keys.merge_hi, secret + sizeof secret - kStripe - kMergeBegin, kStripe);
  return keys;
}

}  // namespace varve::internal::gpu
