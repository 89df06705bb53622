// SPDX-License-Identifier: Apache-2.0
//
// Frames as earlier versions wrote them must decode for ever. Each golden file is a frame. Its raw
// bytes and its base are made here, and the digest in the header proves them right.
// VARVE_WRITE_GOLDEN=1 writes missing files. Existing ones are never overwritten.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/codec/codec_testing.h"

namespace varve::internal {

namespace {

using testing::Bytes;

struct Golden {
  std::string name;
  DType dtype;
  Bytes raw;
  Bytes base;  // empty: none
  Compression compression = Compression::kAuto;
  Predictor predictor;
  Entropy entropy = Entropy::kZstd;
};

// Integer arithmetic only, so that every machine makes the same inputs.
uint32_t Next(uint32_t* state) { return *state = *state * 1664525u + 1013904223u; }

// Floats with the exponents of trained weights: the number of leading zeros of a random number.
std::vector<uint32_t> GoldenWeights(size_t n) {
  uint32_t state = 1;
  std::vector<uint32_t> bits(n);
  for (uint32_t& value : bits) {
    const auto exponent = static_cast<uint32_t>(122 - std::countl_zero(Next(&state) | 0x00100000u));
    value = (Next(&state) & 0x80000000u) | exponent << 23 | Next(&state) >> 9;
  }
  return bits;
}

// A small move of each value, larger in units of the last place when the exponent is smaller.
std::vector<uint32_t> GoldenStep(std::vector<uint32_t> bits, uint32_t shift) {
  uint32_t state = 2;
  for (uint32_t& value : bits) {
    const uint32_t exponent = value >> 23 & 0xFF;
    const uint32_t size = Next(&state) >> std::min(31u, exponent - 106 + shift);
    value += (Next(&state) & 1u << 31) != 0 ? size : 0u - size;
  }
  return bits;
}

std::vector<uint16_t> HighHalves(const std::vector<uint32_t>& bits) {
  std::vector<uint16_t> halves;
  for (const uint32_t value : bits) halves.push_back(static_cast<uint16_t>(value >> 16));
  return halves;
}

std::vector<uint32_t> Halved(std::vector<uint32_t> bits) {
  uint32_t state = 3;
  for (uint32_t& value : bits) value -= (1u << 23) - (Next(&state) >> 28);
  return bits;
}

std::vector<Golden> Goldens() {
  using testing::ToBytes;
  const std::vector<uint32_t> weights = GoldenWeights(9001);
  const std::vector<uint32_t> next = GoldenStep(weights, 12);
  const std::vector<uint32_t> far = GoldenStep(weights, 0);
  Bytes random = testing::RandomBytes(1000, 1);
  Bytes sparse(50000);
  for (size_t i = 0; i < sparse.size(); i += 97) sparse[i] = static_cast<std::byte>(i % 7 + 1);
  uint32_t state = 4;
  Bytes small(6001);  // each value half as likely as the one before
  for (std::byte& value : small) {
    value = static_cast<std::byte>(std::countl_zero(Next(&state) | 1u) * 9 / 8);
  }
  Bytes flat(17000);  // five bits of noise
  for (std::byte& value : flat) value = static_cast<std::byte>(Next(&state) >> 27 << 2);
  Bytes wide(12000);  // many values, the small ones more often
  for (std::byte& value : wide) {
    const uint32_t width = Next(&state) >> 29;
    value = static_cast<std::byte>((Next(&state) >> 24) >> (width / 2));
  }
  std::vector<int32_t> counter(3000);
  for (size_t i = 0; i < counter.size(); ++i) counter[i] = static_cast<int32_t>(i % 300);
  return {
      {"raw_u8", DType::kU8, random, {}, Compression::kNone, Predictor::kRaw},
      {"constant_f32",
       DType::kF32,
       Bytes(4096, std::byte{3}),
       {},
       Compression::kAuto,
       Predictor::kKeyframe},
      {"keyframe_bf16",
       DType::kBF16,
       ToBytes(HighHalves(weights)),
       {},
       Compression::kAuto,
       Predictor::kKeyframe},
      {"keyframe_f32", DType::kF32, ToBytes(weights), {}, Compression::kAuto, Predictor::kKeyframe},
      {"keyframe_i32_matches",
       DType::kI32,
       ToBytes(counter),
       {},
       Compression::kAuto,
       Predictor::kKeyframe},
      {"keyframe_u8_sparse", DType::kU8, sparse, {}, Compression::kAuto, Predictor::kKeyframe},
      {"keyframe_f8_nibbles", DType::kF8E4M3, small, {}, Compression::kAuto, Predictor::kKeyframe},
      {"keyframe_f8_flat", DType::kF8E4M3, flat, {}, Compression::kAuto, Predictor::kKeyframe},
      {"delta_bf16", DType::kBF16, ToBytes(HighHalves(far)), ToBytes(HighHalves(weights)),
       Compression::kAuto, Predictor::kDelta},
      {"delta_f32", DType::kF32, ToBytes(next), ToBytes(weights), Compression::kAuto,
       Predictor::kDelta},
      {"delta_i32", DType::kI32, ToBytes(next), ToBytes(weights), Compression::kAuto,
       Predictor::kDelta},
      {"scaled_delta_f32", DType::kF32, ToBytes(Halved(weights)), ToBytes(weights),
       Compression::kAuto, Predictor::kScaledDelta},
      // Version 2: rANS streams of few symbols, of symbols with low bits, and of classes.
      {"keyframe_bf16_rans",
       DType::kBF16,
       ToBytes(HighHalves(weights)),
       {},
       Compression::kAuto,
       Predictor::kKeyframe,
       Entropy::kRans},
      {"keyframe_f8_rans_low_bits",
       DType::kF8E4M3,
       wide,
       {},
       Compression::kAuto,
       Predictor::kKeyframe,
       Entropy::kRans},
      {"delta_f32_rans", DType::kF32, ToBytes(next), ToBytes(weights), Compression::kAuto,
       Predictor::kDelta, Entropy::kRans},
  };
}

std::filesystem::path PathOf(const Golden& golden) {
  return std::filesystem::path(VARVE_GOLDEN_FRAMES) / (golden.name + ".frame");
}

void WriteMissing(const Golden& golden) {
  if (std::filesystem::exists(PathOf(golden))) return;
  const auto trip = testing::EncodeAndCheck(golden.raw, golden.dtype,
                                            golden.base.empty() ? nullptr : &golden.base,
                                            golden.compression, golden.entropy);
  std::ofstream(PathOf(golden), std::ios::binary)
      .write(reinterpret_cast<const char*>(trip.frame.data()),
             static_cast<std::streamsize>(trip.frame.size()));
}

// True for a frame that has a plane of rANS, or one of classes, which may be rANS.
bool HasRans(std::span<const std::byte> frame) {
  const PlaneUses uses = ParsePlanes(frame).value();
  return uses[static_cast<size_t>(StreamCoder::kRans)].num_planes > 0 ||
         uses[static_cast<size_t>(StreamCoder::kClasses)].num_planes > 0;
}

TEST(GoldenFrameTest, OldFramesDecode) {
  for (const Golden& golden : Goldens()) {
    if (std::getenv("VARVE_WRITE_GOLDEN") != nullptr) WriteMissing(golden);
    std::ifstream in(PathOf(golden), std::ios::binary);
    ASSERT_TRUE(in) << PathOf(golden);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const std::span<const std::byte> frame = std::as_bytes(std::span(text));
    const Result<FrameInfo> info = ParseFrame(frame);
    ASSERT_TRUE(info.ok()) << golden.name << ": " << info.status().ToString();
    EXPECT_EQ(info->predictor, golden.predictor) << golden.name;
    // The byte after the transform is the number of thresholds: these two pin the classes.
    if (golden.name == "delta_bf16" || golden.name == "delta_f32") {
      EXPECT_NE(text[73], '\0') << golden.name;
    }
    const bool rans = golden.entropy == Entropy::kRans;
    EXPECT_EQ(info->version, rans ? 2 : 1) << golden.name;
    EXPECT_TRUE(!rans || HasRans(frame)) << golden.name;
    EXPECT_EQ(info->digest, ComputeDigest(1, golden.raw)) << golden.name;
    Bytes out(info->raw_bytes);
    FrameDecoder decoder;
    const Status status = decoder.Decode(frame, {golden.base}, out);
    ASSERT_TRUE(status.ok()) << golden.name << ": " << status.ToString();
    EXPECT_TRUE(out == golden.raw) << golden.name;
  }
}

}  // namespace

}  // namespace varve::internal
