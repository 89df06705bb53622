// SPDX-License-Identifier: Apache-2.0
#include "codec/digest.h"

#include <gtest/gtest.h>

#include <string_view>

namespace varve {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// The values of `xxhsum -H2`, so that a store can be checked with another tool.
TEST(DigestTest, MatchesXxhsumWithoutSeed) {
  EXPECT_EQ(ToHex(ComputeDigest(0, Bytes(""))), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ToHex(ComputeDigest(0, Bytes("varve"))).size(), 32u);
}

TEST(DigestTest, DependsOnSeedAndData) {
  EXPECT_EQ(ComputeDigest(7, Bytes("a")), ComputeDigest(7, Bytes("a")));
  EXPECT_NE(ComputeDigest(7, Bytes("a")), ComputeDigest(8, Bytes("a")));
  EXPECT_NE(ComputeDigest(7, Bytes("a")), ComputeDigest(7, Bytes("b")));
}

TEST(DigestTest, HexPutsTheHighHalfFirst) {
  EXPECT_EQ(ToHex({.lo = 1, .hi = 0xab}), "00000000000000ab0000000000000001");
}

}  // namespace
}  // namespace varve
