// SPDX-License-Identifier: Apache-2.0
#include "codec/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace varve {
namespace {

std::vector<std::byte> RandomBytes(size_t num_bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(num_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> Encode(std::span<const std::byte> raw, DType dtype) {
  FrameEncoder encoder;
  std::vector<std::byte> frame;
  const Status status =
      encoder.Encode({.raw = raw, .dtype = dtype, .digest = ComputeDigest(1, raw)}, &frame);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return frame;
}

std::vector<std::byte> Decode(std::span<const std::byte> frame) {
  const Result<FrameInfo> info = ParseFrame(frame);
  EXPECT_TRUE(info.ok()) << info.status().ToString();
  std::vector<std::byte> raw(info->raw_bytes);
  FrameDecoder decoder;
  const Status status = decoder.Decode(frame, {}, raw);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return raw;
}

TEST(FrameTest, EveryDTypeRoundTripsAtSizesAroundVectorWidths) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    const size_t width = static_cast<size_t>(std::max(DTypeBits(dtype) / 8, 1));
    for (size_t n : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000}) {
      const std::vector<std::byte> raw = RandomBytes(n * width, n + 1000 * d);
      EXPECT_EQ(Decode(Encode(raw, dtype)), raw) << DTypeName(dtype) << " " << n;
    }
  }
}

TEST(FrameTest, IncompressibleDataCostsAHeader) {
  const std::vector<std::byte> raw = RandomBytes(1 << 20, 5);
  const std::vector<std::byte> frame = Encode(raw, DType::kF32);
  EXPECT_LE(frame.size(), raw.size() + 64);
  EXPECT_EQ(ParseFrame(frame)->predictor, Predictor::kRaw);
}

TEST(FrameTest, ConstantChunksAreTiny) {
  const std::vector<std::byte> raw(1 << 20, std::byte{7});
  const std::vector<std::byte> frame = Encode(raw, DType::kBF16);
  EXPECT_LE(frame.size(), 64u);
  EXPECT_EQ(Decode(frame), raw);
}

TEST(FrameTest, RejectsBadSizes) {
  FrameEncoder encoder;
  std::vector<std::byte> frame;
  const std::vector<std::byte> raw(7);
  EXPECT_EQ(encoder.Encode({.raw = {}, .dtype = DType::kU8}, &frame).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(encoder.Encode({.raw = raw, .dtype = DType::kF32}, &frame).code(),
            StatusCode::kInvalidArgument);
}

TEST(FrameTest, RejectsBadMagic) {
  std::vector<std::byte> frame = Encode(RandomBytes(100, 1), DType::kU8);
  frame[0] = std::byte{0};
  EXPECT_EQ(ParseFrame(frame).status().message(), "frame header: magic is 0, expected 245");
}

TEST(FrameTest, AnyWrongHeaderByteIsSeen) {
  const std::vector<std::byte> good = Encode(RandomBytes(100, 1), DType::kU8);
  for (size_t i = 0; i < 32; ++i) {
    std::vector<std::byte> bad = good;
    bad[i] ^= std::byte{1};
    EXPECT_EQ(ParseFrame(bad).status().code(), StatusCode::kCorruption) << i;
  }
}

TEST(FrameTest, IsConstantLooksAtWholeElements) {
  std::vector<std::byte> raw(64);
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(i % 4);
  EXPECT_TRUE(IsConstant(raw, 4));
  EXPECT_FALSE(IsConstant(raw, 2));
  raw[63] = std::byte{9};
  EXPECT_FALSE(IsConstant(raw, 4));
  EXPECT_TRUE(IsConstant({}, 4));
}

}  // namespace
}  // namespace varve
