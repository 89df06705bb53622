// SPDX-License-Identifier: Apache-2.0
//
// The digest of a chunk: XXH3-128 of its raw bytes, seeded with the store's random seed. It is the
// content address for sharing and the end-to-end check on every read. Functions are stateless.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace varve {

struct Digest {
  uint64_t lo = 0;
  uint64_t hi = 0;
  auto operator<=>(const Digest&) const = default;
};

Digest ComputeDigest(uint64_t seed, std::span<const std::byte> data);

// 32 hexadecimal digits, high half first, as xxhsum -H2 prints it.
std::string ToHex(const Digest& digest);

}  // namespace varve
