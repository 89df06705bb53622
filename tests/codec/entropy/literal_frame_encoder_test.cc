// SPDX-License-Identifier: Apache-2.0
//
// The encoder of literals writes frames that zstd and the decoder of literals read, the same ones
// with every vector level, and hardly larger than zstd's own.
#include "codec/entropy/literal_frame_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "codec/entropy/zstd_coder.h"
#include "tests/codec/entropy/zstd_literals.h"
#include "tests/codec/levels.h"

namespace varve::internal {

namespace {

using U8 = std::vector<uint8_t>;
using Bytes = std::vector<std::byte>;

// Symbols with falling probabilities from `lowest` on, `range` of them.
U8 Skewed(size_t n, double decay, unsigned lowest, unsigned range, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::geometric_distribution<unsigned> symbol(1.0 - decay);
  U8 bytes(n);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(lowest + symbol(random) % range);
  return bytes;
}

// Exactly as large as its frame, so that the address sanitizer sees any byte past the end.
Bytes Encoded(CpuLevel level, const U8& plain) {
  LiteralFrameEncoder encoder(level);
  Bytes frame(plain.size() + 64);
  frame.resize(encoder.Encode(plain, frame));
  frame.shrink_to_fit();
  return frame;
}

void ExpectRoundTrip(const U8& plain, const std::string& what) {
  const Bytes frame = Encoded(CpuLevel::kPortable, plain);
  ASSERT_FALSE(frame.empty()) << what;
  for (const CpuLevel level : Levels()) ASSERT_EQ(Encoded(level, plain), frame) << what;
  U8 out(plain.size());
  ASSERT_EQ(ZSTD_decompress(out.data(), out.size(), frame.data(), frame.size()), out.size())
      << what;
  ASSERT_EQ(out, plain) << what;
  std::fill(out.begin(), out.end(), uint8_t{0});
  ZstdDecompressor decompressor;
  ASSERT_TRUE(decompressor.Decompress(frame, std::as_writable_bytes(std::span(out))).ok()) << what;
  ASSERT_EQ(out, plain) << what;
}

TEST(LiteralFrameEncoderTest, EverySmallSize) {
  for (size_t n = 1; n <= 1100; ++n) {
    for (const double decay : {0.0, 0.5, 0.9}) {
      ExpectRoundTrip(Skewed(n, decay, 7, 200, n), std::to_string(n));
    }
  }
}

TEST(LiteralFrameEncoderTest, SizesAroundFieldsAndBlocks) {
  for (const size_t size : {16384, 65536 + 256, 131072, 2 * 131072}) {
    for (size_t n = size - 9; n <= size + 9; ++n) {
      ExpectRoundTrip(Skewed(n, 0.7, 100, 30, n), std::to_string(n));
      ExpectRoundTrip(Skewed(n, 0.9, 0, 256, n), std::to_string(n));
    }
  }
}

// Symbols are taken in pairs when no two are further apart than 31.
TEST(LiteralFrameEncoderTest, RangesOfSymbols) {
  for (const unsigned range : {1, 2, 3, 31, 32, 33, 64, 255, 256}) {
    for (const unsigned lowest : {0u, 1u, 200u, 256u - range}) {
      if (lowest + range > 256) continue;
      for (const double decay : {0.3, 0.9, 0.99}) {
        ExpectRoundTrip(Skewed(20001, decay, lowest, range, range),
                        std::to_string(range) + " from " + std::to_string(lowest));
      }
    }
  }
}

TEST(LiteralFrameEncoderTest, FlatCodes) {
  for (unsigned bits = 1; bits < 8; ++bits) {
    for (unsigned shift = 0; bits + shift <= 8; ++shift) {
      for (const size_t n : {16, 40000, 140007}) {
        U8 plain = Skewed(n, 0.9999, 0, 1u << bits, bits);
        for (uint8_t& b : plain) b = static_cast<uint8_t>(b << shift);
        ExpectRoundTrip(plain, std::to_string(bits) + " " + std::to_string(shift));
        // No sample would meet these bytes.
        std::fill_n(plain.begin() + static_cast<ptrdiff_t>(n / 3), n / 1000, uint8_t{0});
        ExpectRoundTrip(plain, std::to_string(bits) + " " + std::to_string(shift) + " with zeros");
      }
    }
  }
}

// Counts that are Fibonacci numbers make the deepest trees.
TEST(LiteralFrameEncoderTest, CodesThatWouldBeTooLong) {
  U8 plain;
  size_t count = 1;
  size_t before = 1;
  for (unsigned symbol = 0; plain.size() < 120000; ++symbol) {
    plain.insert(plain.end(), count, static_cast<uint8_t>(symbol * 9));
    before = std::exchange(count, count + before);
  }
  std::shuffle(plain.begin(), plain.end(), std::mt19937_64(1));
  ExpectRoundTrip(plain, "Fibonacci");
}

TEST(LiteralFrameEncoderTest, BlocksOfEveryKind) {
  constexpr ptrdiff_t kBlock = 128 << 10;
  U8 plain = Skewed(7 * kBlock + 5, 0.5, 0, 256, 1);
  std::mt19937_64 random(2);
  const auto noise = [&] { return static_cast<uint8_t>(random()); };
  std::generate_n(plain.begin() + kBlock, kBlock, noise);
  std::fill_n(plain.begin() + 2 * kBlock, kBlock, uint8_t{7});
  // Its code is larger than what it saves, and nothing after it may use that.
  std::generate_n(plain.begin() + 4 * kBlock, kBlock, noise);
  std::fill_n(plain.begin() + 4 * kBlock, 600, uint8_t{7});
  std::generate_n(plain.begin() + 5 * kBlock, kBlock, noise);
  std::fill_n(plain.begin() + 5 * kBlock, 600, uint8_t{7});
  ExpectRoundTrip(plain, "blocks");
}

TEST(LiteralFrameEncoderTest, IsHardlyLargerThanZstds) {
  for (const double decay : {0.3, 0.6, 0.9, 0.95, 0.98}) {
    const U8 plain = Skewed(100000, decay, 0, 256, 5);
    const size_t zstd_bytes = testing::ZstdLiterals(std::as_bytes(std::span(plain))).size();
    EXPECT_LE(Encoded(DetectCpu(), plain).size(), zstd_bytes + zstd_bytes / 1000) << decay;
  }
}

TEST(LiteralFrameEncoderTest, WritesNothingPastTheRoomThereIs) {
  const U8 plain = Skewed(50000, 0.8, 0, 256, 1);
  const size_t whole = Encoded(DetectCpu(), plain).size();
  LiteralFrameEncoder encoder(DetectCpu());
  for (const size_t room : {size_t{0}, size_t{1}, size_t{8}, size_t{20}, whole / 2, whole - 1}) {
    Bytes frame(room);
    frame.shrink_to_fit();
    EXPECT_EQ(encoder.Encode(plain, frame), 0u) << room;
  }
  Bytes frame(whole);
  EXPECT_EQ(encoder.Encode(plain, frame), whole);
}

// A complete code, and no rarer symbol has a shorter one.
void ExpectGoodCode(const ByteCounts& counts, const HuffmanCode& code) {
  unsigned used = 0;
  for (size_t a = 0; a < counts.size(); ++a) {
    ASSERT_EQ(code.bits[a] == 0, counts[a] == 0) << a;
    ASSERT_LE(code.bits[a], kMaxCodeBits);
    if (counts[a] > 0) used += 1u << (kMaxCodeBits - code.bits[a]);
    for (size_t b = 0; b < a; ++b) {
      if (counts[a] == 0 || counts[b] == 0 || counts[a] == counts[b]) continue;
      ASSERT_TRUE(counts[a] < counts[b] ? code.bits[a] >= code.bits[b]
                                        : code.bits[a] <= code.bits[b]);
    }
  }
  ASSERT_EQ(used, 1u << kMaxCodeBits);
}

TEST(HuffmanCodeTest, IsCompleteAndReadsAsItWasWritten) {
  std::mt19937_64 random(1);
  int without_description = 0;
  for (int round = 0; round < 20000; ++round) {
    ByteCounts counts{};
    const size_t num_symbols = 2 + random() % 255;
    const double spread = static_cast<double>(random() % 16);
    for (size_t i = 0; i < num_symbols; ++i) {
      const double share = static_cast<double>(random() % 1000) / 1000;
      counts[num_symbols > 128 ? i : random() % 256] =
          1 + static_cast<uint32_t>(std::exp2(spread * share));
    }
    counts[0] += counts[0] == 0;
    counts[1] += counts[1] == 0;
    const HuffmanCode code = MakeHuffmanCode(counts);
    ASSERT_NO_FATAL_FAILURE(ExpectGoodCode(counts, code));
    Bytes description(kMaxCodeDescription);
    description.resize(WriteHuffmanCode(code, description.data()));
    without_description += description.empty();
    if (description.empty()) continue;
    ByteReader reader(description);
    HuffmanCode read;
    ASSERT_TRUE(ReadHuffmanCode(&reader, &read)) << round;
    ASSERT_TRUE(reader.rest().empty()) << round;
    ASSERT_EQ(read.bits, code.bits) << round;
  }
  EXPECT_LT(without_description, 200);
}

}  // namespace

}  // namespace varve::internal
