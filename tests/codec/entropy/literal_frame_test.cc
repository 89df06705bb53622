// SPDX-License-Identifier: Apache-2.0
//
// The decoder of literals agrees with zstd about every frame that it takes: about those that are
// written, and about damaged ones.
#include "codec/entropy/literal_frame.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "codec/entropy/zstd_coder.h"
#include "tests/codec/entropy/zstd_literals.h"
#include "tests/codec/levels.h"

namespace varve::internal {

namespace {

using Bytes = std::vector<std::byte>;

// Symbols with falling probabilities: each next one is `decay` times as likely.
Bytes Skewed(size_t n, double decay, int first_symbol, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::geometric_distribution<int> symbol(1.0 - decay);
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>((first_symbol + symbol(random)) & 0xFF);
  return bytes;
}

// Bytes of `bits` bits that are noise from bit `shift` on, and others that do not change.
Bytes Flat(size_t n, int bits, int shift, int rest, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(n);
  for (std::byte& b : bytes) {
    b = static_cast<std::byte>(rest + static_cast<int>((random() % (1u << bits)) << shift));
  }
  return bytes;
}

Bytes Compressed(const Bytes& plain) {
  ZstdCompressor zstd;
  Bytes frame(plain.size());
  frame.resize(zstd.CompressLiterals(plain, frame));
  return frame;
}

std::span<uint8_t> AsRoom(Bytes* bytes) {
  return {reinterpret_cast<uint8_t*>(bytes->data()), bytes->size()};
}

bool ZstdDecodes(const Bytes& frame, Bytes* out) {
  return ZSTD_decompress(out->data(), out->size(), frame.data(), frame.size()) == out->size();
}

class LiteralFrameTest : public ::testing::TestWithParam<CpuLevel> {};

TEST_P(LiteralFrameTest, DecodesWhatIsWritten) {
  LiteralFrameDecoder decoder(GetParam());
  for (const size_t n : {16384, 16385, 16387, 20000, 84096, 131071, 131072, 132096, 132097, 150000,
                         262144, 400001}) {
    for (const double decay : {0.01, 0.1, 0.4, 0.7, 0.85}) {
      const Bytes plain = Skewed(n, decay, static_cast<int>(n % 251), n);
      for (const Bytes& frame : {Compressed(plain), testing::ZstdLiterals(plain)}) {
        Bytes out(n);
        ASSERT_TRUE(decoder.Decode(frame, AsRoom(&out))) << n << " " << decay;
        ASSERT_EQ(out, plain) << n << " " << decay;
      }
    }
  }
}

TEST_P(LiteralFrameTest, DecodesFlatCodes) {
  LiteralFrameDecoder decoder(GetParam());
  for (int bits = 1; bits < 8; ++bits) {
    for (int shift = 0; bits + shift <= 8; ++shift) {
      const int rest = 255 & ~(((1 << bits) - 1) << shift);
      for (const size_t n : {70001, 131072, 150003}) {
        for (const int constant : {0, rest, rest & 0x55}) {
          const Bytes plain = Flat(n, bits, shift, constant, n);
          for (const Bytes& frame : {Compressed(plain), testing::ZstdLiterals(plain)}) {
            Bytes out(n);
            ASSERT_TRUE(decoder.Decode(frame, AsRoom(&out))) << bits << " " << shift << " " << n;
            ASSERT_EQ(out, plain) << bits << " " << shift << " " << n;
          }
        }
      }
    }
  }
}

// Each quarter of a block is a stream. If one ends long before the others, the others go on alone.
TEST_P(LiteralFrameTest, DecodesStreamsOfUnequalLength) {
  LiteralFrameDecoder decoder(GetParam());
  for (size_t quarter = 0; quarter < 4; ++quarter) {
    Bytes plain = Skewed(80000, 0.2, 0, 1);
    const Bytes noise = Skewed(20000, 0.9, 0, 2);
    std::copy(noise.begin(), noise.end(), plain.begin() + static_cast<ptrdiff_t>(20000 * quarter));
    Bytes out(plain.size());
    for (const Bytes& frame : {Compressed(plain), testing::ZstdLiterals(plain)}) {
      ASSERT_TRUE(decoder.Decode(frame, AsRoom(&out))) << quarter;
      ASSERT_EQ(out, plain) << quarter;
    }
  }
}

// Blocks that are raw, that repeat one byte, and, when zstd writes them, that use the code of the
// block before.
TEST_P(LiteralFrameTest, DecodesEveryKindOfBlock) {
  constexpr ptrdiff_t kBlock = 128 << 10;
  Bytes plain = Skewed(6 * kBlock, 0.5, 0, 1);
  std::mt19937_64 random(2);
  std::generate_n(plain.begin() + kBlock, kBlock, [&] { return std::byte(random() & 0xFF); });
  std::fill_n(plain.begin() + 2 * kBlock, kBlock, std::byte{7});
  Bytes out(plain.size());
  LiteralFrameDecoder decoder(GetParam());
  for (const Bytes& frame : {Compressed(plain), testing::ZstdLiterals(plain)}) {
    ASSERT_TRUE(decoder.Decode(frame, AsRoom(&out)));
    ASSERT_EQ(out, plain);
  }
}

TEST_P(LiteralFrameTest, LeavesOthersToZstd) {
  LiteralFrameDecoder decoder(GetParam());
  ZstdDecompressor zstd;
  const Bytes few = Skewed(5000, 0.5, 0, 1);
  const Bytes noisy = Skewed(100000, 0.98, 0, 1);
  const Bytes short_last_block = Skewed(131073, 0.5, 0, 1);
  for (const Bytes& plain : {few, noisy, short_last_block}) {
    const Bytes frame = Compressed(plain);
    Bytes out(plain.size());
    EXPECT_FALSE(decoder.Decode(frame, AsRoom(&out)));
    EXPECT_TRUE(zstd.Decompress(frame, out).ok());
    EXPECT_EQ(out, plain);
  }
  Bytes repeating = Skewed(1000, 0.5, 0, 1);
  while (repeating.size() < 64000)
    repeating.insert(repeating.end(), repeating.begin(), repeating.end());
  Bytes matches(repeating.size());
  matches.resize(ZstdCompressor().CompressMatches(repeating, matches));
  Bytes out(repeating.size());
  EXPECT_FALSE(decoder.Decode(matches, AsRoom(&out)));
  EXPECT_TRUE(zstd.Decompress(matches, out).ok());
  EXPECT_EQ(out, repeating);
}

TEST_P(LiteralFrameTest, RefusesAnotherSizeAndBytesBehindTheEnd) {
  LiteralFrameDecoder decoder(GetParam());
  const Bytes plain = Skewed(50000, 0.5, 0, 1);
  Bytes frame = Compressed(plain);
  for (const size_t n : {plain.size() - 1, plain.size() + 1}) {
    Bytes out(n);
    EXPECT_FALSE(decoder.Decode(frame, AsRoom(&out))) << n;
  }
  Bytes out(plain.size());
  frame.push_back(std::byte{0});
  EXPECT_FALSE(decoder.Decode(frame, AsRoom(&out)));
  for (size_t bytes = 0; bytes + 1 < frame.size(); bytes += bytes < 300 ? 1 : 997) {
    EXPECT_FALSE(decoder.Decode(std::span(frame).first(bytes), AsRoom(&out))) << bytes;
  }
}

// Damaged frames that it accepts, zstd accepts as well, and decodes to the same bytes.
TEST_P(LiteralFrameTest, AgreesWithZstdAboutDamagedFrames) {
  LiteralFrameDecoder decoder(GetParam());
  std::mt19937_64 random(1);
  for (const Bytes& plain : {Skewed(30000, 0.3, 0, 3), Skewed(30000, 0.6, 0, 3),
                             Skewed(30000, 0.8, 0, 3), Flat(30000, 7, 1, 0, 3)}) {
    const Bytes frame = Compressed(plain);
    int taken = 0;
    for (int round = 0; round < 1500; ++round) {
      Bytes damaged = frame;
      // The headers and the code are where a byte decides most.
      const size_t range = round % 3 == 0 ? frame.size() : std::min<size_t>(frame.size(), 64);
      for (int k = 0; k <= round % 2; ++k) {
        damaged[random() % range] = static_cast<std::byte>(random() & 0xFF);
      }
      Bytes out(plain.size());
      if (!decoder.Decode(damaged, AsRoom(&out))) continue;
      ++taken;
      Bytes expected(plain.size());
      ASSERT_TRUE(ZstdDecodes(damaged, &expected)) << frame.size() << " " << round;
      ASSERT_EQ(out, expected) << frame.size() << " " << round;
    }
    EXPECT_GT(taken, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, LiteralFrameTest, ::testing::ValuesIn(Levels()),
                         [](const auto& level) {
                           return "Level" + std::to_string(static_cast<int>(level.param));
                         });

}  // namespace

}  // namespace varve::internal
