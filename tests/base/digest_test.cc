// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace varve::internal {

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

// The sizes include those around which XXH3 changes its algorithm, and those that its stream holds
// back.
TEST(DigestTest, AStreamGivesTheDigestOfTheWhole) {
  std::string text(5000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  for (const size_t size : {0, 1, 16, 17, 240, 241, 256, 257, 1024, 1025, 5000}) {
    for (const size_t piece : {1, 60, 255, 257, 5000}) {
      DigestStream stream(99);
      for (size_t at = 0; at < size; at += piece) {
        stream.Add(Bytes(std::string_view(text).substr(at, std::min(piece, size - at))));
      }
      EXPECT_EQ(stream.Get(), ComputeDigest(99, Bytes(std::string_view(text).substr(0, size))))
          << size << " bytes in pieces of " << piece;
    }
  }
}

}  // namespace

}  // namespace varve::internal
