// SPDX-License-Identifier: Apache-2.0
//
// The digest of a chunk: XXH3-128 of its raw bytes, seeded with the random seed of its store
// (docs/format.md). It is the address by which chunks are shared, and the check of every read. Who
// makes a DeviceTensorSource computes it:
//
//   const varve::Digest digest = varve::ComputeDigest(/*seed=*/0, mine);
//   std::puts(varve::ToHex(digest).c_str());
//
// Thread rule: the functions may be called from any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace varve {

// 128 bits, as two numbers. The canonical form, as in hexadecimal digits, has `hi` first.
struct Digest {
  uint64_t lo = 0;
  uint64_t hi = 0;
  auto operator<=>(const Digest&) const = default;
};

// XXH3_128bits_withSeed of the bytes. They may be empty. Does not fail.
Digest ComputeDigest(uint64_t seed, std::span<const std::byte> bytes);

// 32 hexadecimal digits, high half first, as `xxhsum -H2` prints them.
std::string ToHex(const Digest& digest);

}  // namespace varve
