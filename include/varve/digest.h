// SPDX-License-Identifier: Apache-2.0
//
// The digest of a chunk is the XXH3-128 of its raw bytes, with the random seed of its store
// (docs/format.md). Chunks with equal digests are shared. Every read verifies digests. A user who
// writes a DeviceTensorSource computes them:
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

// A digest of 128 bits, as two numbers. Its text has `hi` first, as in the canonical form of XXH3.
struct Digest {
  uint64_t lo = 0;
  uint64_t hi = 0;
  auto operator<=>(const Digest&) const = default;
};

// Returns XXH3_128bits_withSeed of the bytes, which may be none. Does not fail.
Digest ComputeDigest(uint64_t seed, std::span<const std::byte> bytes);

// Returns 32 hexadecimal digits, high half first, as `xxhsum -H2` prints them.
std::string ToHex(const Digest& digest);

}  // namespace varve
