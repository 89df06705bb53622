// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <zstd.h>

#include <random>
#include <string>
#include <vector>

#include "codec/entropy/stream_decoder.h"
#include "codec/entropy/stream_encoder.h"

namespace varve::internal {

namespace {

using U8 = std::vector<uint8_t>;

struct Encoded {
  StreamCoder coder;
  U8 bytes;
};

Encoded EncodeAndCheck(const U8& data, bool try_matches = false) {
  StreamEncoder encoder(DetectCpu());
  ByteBuffer buffer;
  if (try_matches) {
    encoder.AppendBest(data.data(), data.size(), &buffer);
  } else {
    encoder.Append(data.data(), data.size(), &buffer);
  }
  EXPECT_LE(buffer.size(), data.size() + kStreamHeaderBytes + 1);
  Encoded encoded{.coder = static_cast<StreamCoder>(*buffer.data()),
                  .bytes = U8(buffer.data(), buffer.data() + buffer.size())};
  ByteReader reader(buffer.bytes());
  U8 out(data.size());
  StreamDecoder decoder(CpuLevel::kPortable);
  const Status status = decoder.Decode(&reader, out);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(out, data);
  EXPECT_TRUE(reader.rest().empty());
  return encoded;
}

// Bytes whose value k has about the probability (1 - p) * p^k, capped.
U8 Geometric(size_t n, double p, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::geometric_distribution<int> distribution(1.0 - p);
  U8 bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(std::min(distribution(random), 255));
  return bytes;
}

TEST(StreamTest, PicksACoderForEachKindOfData) {
  std::mt19937_64 random(1);
  U8 noise(100000);
  for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
  EXPECT_EQ(EncodeAndCheck(noise).coder, StreamCoder::kRaw);
  EXPECT_EQ(EncodeAndCheck(U8(100000, 5)).coder, StreamCoder::kConstant);
  EXPECT_EQ(EncodeAndCheck(Geometric(100000, 0.97, 1)).coder, StreamCoder::kHalves);
  EXPECT_EQ(EncodeAndCheck(Geometric(100000, 0.85, 1)).coder, StreamCoder::kZstd);
  EXPECT_EQ(EncodeAndCheck(Geometric(100000, 0.5, 2)).coder, StreamCoder::kNibbles);
  EXPECT_EQ(EncodeAndCheck(Geometric(100000, 0.01, 3)).coder, StreamCoder::kSparse);
}

TEST(StreamTest, SizesAroundVectorWidths) {
  for (const double p : {0.001, 0.1, 0.5, 0.9, 0.99}) {
    for (const size_t n : {1,   2,   7,   8,   9,    63,   64,   65,     66,     127,   128,
                           129, 255, 256, 257, 4095, 4096, 4097, 131071, 131072, 131073}) {
      EncodeAndCheck(Geometric(n, p, n));
    }
  }
}

TEST(StreamTest, SparseStreamsComeNearTheEntropy) {
  // 1 % non-zero: 0.081 bits for the position and little for the value.
  const Encoded encoded = EncodeAndCheck(Geometric(262144, 0.01, 3));
  EXPECT_LT(encoded.bytes.size(), 262144 * 0.095 / 8);
}

TEST(StreamTest, RepeatingDataUsesMatches) {
  U8 data(100000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * i % 251);
  EXPECT_LT(EncodeAndCheck(data, true).bytes.size(), data.size() / 50);
  EXPECT_GT(EncodeAndCheck(data, false).bytes.size(), data.size() / 2);
}

TEST(StreamTest, RansWhereItIsWanted) {
  const auto coder_of = [](const U8& data, RansUse use) {
    StreamEncoder encoder(DetectCpu());
    encoder.SetRans(use);
    ByteBuffer buffer;
    encoder.Append(data.data(), data.size(), &buffer);
    const auto coder = static_cast<StreamCoder>(*buffer.data());
    EXPECT_EQ(encoder.num_rans(), coder == StreamCoder::kRans ? 1u : 0u);
    ByteReader reader(buffer.bytes());
    U8 out(data.size());
    EXPECT_TRUE(StreamDecoder(CpuLevel::kPortable).Decode(&reader, out).ok());
    EXPECT_EQ(out, data);
    return coder;
  };
  const U8 large = Geometric(262144, 0.85, 1);
  EXPECT_EQ(coder_of(large, RansUse::kNever), StreamCoder::kZstd);
  EXPECT_EQ(coder_of(large, RansUse::kFew), StreamCoder::kZstd);
  EXPECT_EQ(coder_of(large, RansUse::kFirst), StreamCoder::kRans);
  // Few values are read faster from rANS at every level that has vectors.
  const U8 few = Geometric(262144, 0.6, 1);
  EXPECT_EQ(coder_of(few, RansUse::kNever), StreamCoder::kNibbles);
  EXPECT_EQ(coder_of(few, RansUse::kFirst), StreamCoder::kRans);
  // The states of the lanes weigh on small streams.
  const U8 small = Geometric(6000, 0.85, 1);
  EXPECT_EQ(coder_of(small, RansUse::kFirst), StreamCoder::kZstd);
  EXPECT_EQ(coder_of(small, RansUse::kAlways), StreamCoder::kRans);
  EXPECT_NE(coder_of(U8(small.begin(), small.begin() + 100), RansUse::kAlways), StreamCoder::kRans);
  EXPECT_EQ(RansUseAt(CpuLevel::kPortable, Entropy::kAuto), RansUse::kNever);
  EXPECT_EQ(RansUseAt(CpuLevel::kPortable, Entropy::kRans), RansUse::kAlways);
  EXPECT_EQ(RansUseAt(CpuLevel::kAvx512, Entropy::kZstd), RansUse::kNever);
  EXPECT_EQ(RansUseAt(CpuLevel::kAvx512, Entropy::kAuto), RansUse::kFirst);
}

// The promise to other decoders: a zstd stream is an ordinary frame.
TEST(StreamTest, ZstdStreamsAreOrdinaryFrames) {
  const U8 data = Geometric(300000, 0.85, 1);
  const Encoded encoded = EncodeAndCheck(data);
  ASSERT_EQ(encoded.coder, StreamCoder::kZstd);
  const uint8_t* const frame = encoded.bytes.data() + kStreamHeaderBytes;
  const size_t frame_bytes = encoded.bytes.size() - kStreamHeaderBytes;
  EXPECT_EQ(ZSTD_findFrameCompressedSize(frame, frame_bytes), frame_bytes);
  EXPECT_EQ(ZSTD_getFrameContentSize(frame, frame_bytes), data.size());
  U8 out(data.size());
  EXPECT_EQ(ZSTD_decompress(out.data(), out.size(), frame, frame_bytes), data.size());
  EXPECT_EQ(out, data);
}

std::string DecodeError(const U8& stream, size_t n) {
  ByteReader reader(std::as_bytes(std::span(stream)));
  U8 out(n);
  StreamDecoder decoder(DetectCpu());
  const Status status = decoder.Decode(&reader, out);
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCorruption);
  return status.message();
}

TEST(StreamTest, SaysWhatIsWrong) {
  EXPECT_EQ(DecodeError({}, 1), "stream header is cut short");
  EXPECT_EQ(DecodeError({0, 9, 0, 0, 0, 1}, 9), "rest holds 1 bytes, expected 9");
  EXPECT_EQ(DecodeError({0, 1, 0, 0, 0, 1}, 2), "raw stream holds 1 bytes, expected 2");
  EXPECT_EQ(DecodeError({1, 2, 0, 0, 0, 1, 1}, 2), "constant stream holds 2 bytes, expected 1");
  EXPECT_EQ(DecodeError({9, 0, 0, 0, 0}, 2), "stream coder is 9, expected 0 to 7");
  EXPECT_EQ(DecodeError({5, 0, 0, 0, 0}, 2), "stream of classes inside a stream");
  EXPECT_EQ(DecodeError({2, 1, 0, 0, 0, 1}, 2), "zstd stream: Src size is incorrect");
}

TEST(StreamTest, BitmapsEndWhereTheirStreamEnds) {
  // sparse: a bitmap of one byte with all bits set, for three bytes.
  EXPECT_EQ(DecodeError({3, 12, 0, 0, 0, 0, 1, 0, 0, 0, 0xFF, 0, 3, 0, 0, 0, 1}, 3),
            "bitmap has bits after its end");
}

TEST(StreamTest, NestingIsBounded) {
  U8 stream = {0, 1, 0, 0, 0, 0};
  for (int depth = 0; depth < kMaxStreamDepth; ++depth) {
    U8 outer = {3, static_cast<uint8_t>(stream.size()), 0, 0, 0};
    outer.insert(outer.end(), stream.begin(), stream.end());
    stream = outer;
  }
  EXPECT_EQ(DecodeError(stream, 5000), "streams nest deeper than 4");
}

}  // namespace

}  // namespace varve::internal
