// SPDX-License-Identifier: Apache-2.0
#include "codec/frame.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/codec/codec_testing.h"
#include "tests/support/status_checks.h"

namespace varve::internal {

namespace {

using testing::Bytes;
using testing::ElementBytes;
using testing::EncodeAndCheck;
using testing::RandomBytes;
using testing::ToBf16;
using testing::ToBytes;
using testing::ToF16;
using testing::Trained;
using testing::Weights;

constexpr size_t kChunk = 262144;

TEST(FrameTest, EveryDTypeRoundTripsAtSizesAroundVectorWidths) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const size_t n : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 4097}) {
      const Bytes raw = RandomBytes(n * ElementBytes(dtype), n);
      Bytes near = raw;
      near[near.size() / 2] ^= std::byte{1};
      const Bytes far = RandomBytes(raw.size(), n + 1);
      for (const Compression compression :
           {Compression::kAuto, Compression::kNone, Compression::kFast, Compression::kMax}) {
        EncodeAndCheck(raw, dtype, nullptr, compression);
        EncodeAndCheck(raw, dtype, &near, compression);
        EncodeAndCheck(raw, dtype, &far, compression);
      }
    }
  }
}

TEST(FrameTest, EveryDTypeOfCompressibleDataRoundTrips) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    Bytes raw = RandomBytes(20001 * ElementBytes(dtype), 3);
    for (std::byte& byte : raw) byte &= std::byte{0x8F};
    const auto keyframe = EncodeAndCheck(raw, dtype);
    EXPECT_EQ(keyframe.info.predictor, Predictor::kKeyframe) << DTypeName(dtype);
    EXPECT_LT(keyframe.frame.size(), raw.size() * 3 / 4);
    Bytes next = raw;
    for (size_t i = 0; i < next.size(); i += 400) next[i] ^= std::byte{1};
    const auto delta = EncodeAndCheck(next, dtype, &raw);
    EXPECT_TRUE(delta.info.num_sources > 0) << DTypeName(dtype);
    EXPECT_LT(delta.frame.size(), keyframe.frame.size() / 4) << DTypeName(dtype);
  }
}

// All 65,536 patterns of the 16-bit floats, so all NaN payloads, infinities, denormals and zeros.
TEST(FrameTest, Every16BitPatternRoundTrips) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(40503 * i);
  std::vector<uint16_t> sorted = all;
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint16_t> next = sorted;
  for (uint16_t& value : next) ++value;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kI16}) {
    EncodeAndCheck(ToBytes(all), dtype);
    EncodeAndCheck(ToBytes(sorted), dtype);
    const Bytes base = ToBytes(sorted);
    const auto delta = EncodeAndCheck(ToBytes(next), dtype, &base);
    EXPECT_EQ(delta.info.predictor, Predictor::kDelta) << DTypeName(dtype);
    const Bytes shuffled = ToBytes(all);
    EncodeAndCheck(ToBytes(next), dtype, &shuffled, Compression::kMax);
  }
}

TEST(FrameTest, SpecialFloatsSurviveEveryPredictor) {
  std::vector<float> base = Weights(kChunk, 1);
  std::vector<float> next = base;
  for (float& value : next) value *= 0.9f;
  const uint32_t specials[] = {0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000,
                               0x00000001, 0x80000001, 0x00000000, 0x80000000, 0x7F7FFFFF};
  for (size_t i = 0; i < 10; ++i) {
    for (size_t k = 0; k < 10; ++k) {
      base[1000 * i + k] = std::bit_cast<float>(specials[i]);
      next[1000 * i + k] = std::bit_cast<float>(specials[k]);
    }
  }
  const Bytes from = ToBytes(base);
  EncodeAndCheck(ToBytes(next), DType::kF32);
  const auto scaled = EncodeAndCheck(ToBytes(next), DType::kF32, &from);
  EXPECT_EQ(scaled.info.predictor, Predictor::kScaledDelta);
  EXPECT_LT(scaled.frame.size(), from.size() / 10);
  EncodeAndCheck(ToBytes(Trained(next, 1e-5f, 4)), DType::kF32, &from, Compression::kMax);
}

// A caller that knows the decay of a moment gives it.
TEST(FrameTest, AScaleThatIsGivenIsTheOneThatIsTried) {
  const Bytes from = ToBytes(Weights(kChunk, 1));
  const Bytes decayed = [&] {
    std::vector<float> values = Weights(kChunk, 1);
    for (float& value : values) value *= 0.9f;
    return ToBytes(values);
  }();
  FrameEncoder encoder;
  const FrameBase base{.address = {.save_id = 1}, .digest = {}, .raw = from, .path_bytes = 1};
  EncodeInput input{.raw = decayed, .dtype = DType::kF32, .base = &base};
  const auto bytes_with = [&](std::optional<float> scale, Predictor predictor) {
    Bytes frame, out(decayed.size());
    input.scale = scale;
    VARVE_EXPECT_OK(encoder.Encode(input, &frame));
    EXPECT_EQ(ParseFrame(frame)->predictor, predictor);
    VARVE_EXPECT_OK(FrameDecoder().Decode(frame, {from}, out));
    EXPECT_TRUE(out == decayed);
    return frame.size();
  };
  for (const Compression compression : {Compression::kAuto, Compression::kMax}) {
    input.compression = compression;
    EXPECT_LT(bytes_with(0.9f, Predictor::kScaledDelta), 200);
    EXPECT_GT(bytes_with(0.8f, Predictor::kScaledDelta), decayed.size() / 8);
    EXPECT_GT(bytes_with(1.0f, Predictor::kDelta), decayed.size() / 8);
  }
  Bytes frame;
  for (const float scale : {0.0f, -0.9f, std::numeric_limits<float>::infinity()}) {
    input.scale = scale;
    EXPECT_EQ(encoder.Encode(input, &frame).code(), StatusCode::kInvalidArgument);
  }
}

TEST(FrameTest, WeightsReachTheirRatios) {
  const std::vector<float> weights = Weights(kChunk, 1);
  const std::vector<float> next = Trained(weights, 1e-5f, 2);
  const auto ratio = [](const testing::RoundTrip& trip, const Bytes& raw) {
    return static_cast<double>(trip.frame.size()) / static_cast<double>(raw.size());
  };
  EXPECT_LT(ratio(EncodeAndCheck(ToBf16(weights), DType::kBF16), ToBf16(weights)), 0.67);
  EXPECT_LT(ratio(EncodeAndCheck(ToBytes(weights), DType::kF32), ToBytes(weights)), 0.84);
  const Bytes bf16 = ToBf16(weights);
  const Bytes f16 = ToF16(weights);
  const Bytes f32 = ToBytes(weights);
  const auto delta = EncodeAndCheck(ToBf16(next), DType::kBF16, &bf16);
  EXPECT_EQ(delta.info.predictor, Predictor::kDelta);
  EXPECT_LT(ratio(delta, bf16), 0.12);
  EXPECT_LT(ratio(EncodeAndCheck(ToF16(next), DType::kF16, &f16), f16), 0.40);
  EXPECT_LT(ratio(EncodeAndCheck(ToBytes(next), DType::kF32, &f32), f32), 0.55);
}

TEST(FrameTest, IncompressibleDataCostsAHeader) {
  const Bytes raw = RandomBytes(1 << 20, 5);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kU8, DType::kF64}) {
    const auto trip = EncodeAndCheck(raw, dtype);
    EXPECT_EQ(trip.info.predictor, Predictor::kRaw);
    EXPECT_EQ(trip.frame.size(), raw.size() + 32);
  }
}

TEST(FrameTest, ConstantChunksAreTiny) {
  const auto trip = EncodeAndCheck(Bytes(1 << 20, std::byte{7}), DType::kBF16);
  EXPECT_LE(trip.frame.size(), 64u);
}

// A sample sees only zeros. The encoder must not lose what is between.
TEST(FrameTest, LoneValuesBetweenSamplesSurvive) {
  for (const std::byte fill : {std::byte{0}, std::byte{9}}) {
    for (const size_t at : {1, 100, 70001, (1 << 20) - 70}) {
      Bytes raw(1 << 20, fill);
      raw[at] ^= std::byte{0xFF};
      const auto trip = EncodeAndCheck(raw, DType::kF32);
      EXPECT_LE(trip.frame.size(), raw.size() / 20);
    }
  }
}

TEST(FrameTest, RepeatingIntegersUseMatches) {
  std::vector<int64_t> values(50000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i * i % 1000);
  const auto trip = EncodeAndCheck(ToBytes(values), DType::kI64);
  EXPECT_LT(trip.frame.size(), values.size() / 4);
}

struct ChainCase {
  uint32_t depth;
  uint64_t path_bytes;
  int max_depth;
  double max_path_ratio;
  bool taken;
};

TEST(FrameTest, ChainsAreBounded) {
  const std::vector<float> weights = Weights(kChunk, 1);
  const Bytes base = ToBf16(weights);
  const Bytes raw = ToBf16(Trained(weights, 1e-6f, 2));
  const uint64_t keyframe = EncodeAndCheck(raw, DType::kBF16).frame.size();
  const ChainCase cases[] = {{1, keyframe, 8, 2.0, true},      {7, keyframe, 8, 2.0, true},
                             {8, keyframe, 8, 2.0, false},     {1, keyframe, 1, 2.0, false},
                             {1, 2 * keyframe, 8, 2.0, false}, {1, 2 * keyframe, 8, 4.0, true},
                             {0xFFFFFFFF, 1, 8, 2.0, false}};
  for (const ChainCase& c : cases) {
    const FrameBase from{.address = {.save_id = 1, .ordinal = 2},
                         .digest = ComputeDigest(1, base),
                         .raw = base,
                         .depth = c.depth,
                         .path_bytes = c.path_bytes};
    EncodeInput input;
    input.raw = raw;
    input.dtype = DType::kBF16;
    input.base = &from;
    input.max_depth = c.max_depth;
    input.max_path_ratio = c.max_path_ratio;
    Bytes frame;
    FrameEncoder encoder;
    ASSERT_TRUE(encoder.Encode(input, &frame).ok());
    const FrameInfo info = *ParseFrame(frame);
    EXPECT_EQ(info.num_sources > 0, c.taken) << c.depth << " " << c.path_bytes;
    EXPECT_EQ(info.depth, c.taken ? c.depth + 1 : 1u);
    EXPECT_EQ(info.path_bytes, frame.size() + (c.taken ? c.path_bytes : 0));
    if (c.taken) {
      EXPECT_EQ(info.base()->address, from.address);
      EXPECT_EQ(info.base()->digest, from.digest);
    }
  }
}

TEST(FrameTest, FarBasesAreNotTaken) {
  const Bytes base = ToBf16(Weights(kChunk, 1));
  const Bytes raw = ToBf16(Weights(kChunk, 2));
  EXPECT_EQ(EncodeAndCheck(raw, DType::kBF16, &base).info.predictor, Predictor::kKeyframe);
}

TEST(FrameTest, MaxIsNeverLargerThanAuto) {
  const std::vector<float> weights = Weights(20000, 1);
  const Bytes base = ToBytes(weights);
  for (const float lr : {1e-6f, 1e-4f, 1e-2f}) {
    const Bytes raw = ToBytes(Trained(weights, lr, 2));
    const size_t fast = EncodeAndCheck(raw, DType::kF32, &base, Compression::kAuto).frame.size();
    EXPECT_LE(EncodeAndCheck(raw, DType::kF32, &base, Compression::kMax).frame.size(), fast) << lr;
  }
}

TEST(FrameTest, FastAndNoneUseNoBase) {
  const Bytes raw = ToBf16(Weights(kChunk, 1));
  const auto fast = EncodeAndCheck(raw, DType::kBF16, &raw, Compression::kFast);
  EXPECT_EQ(fast.info.predictor, Predictor::kKeyframe);
  const auto none = EncodeAndCheck(raw, DType::kBF16, &raw, Compression::kNone);
  EXPECT_EQ(none.info.predictor, Predictor::kRaw);
}

TEST(FrameTest, ABaseOfAnotherSizeIsNotUsed) {
  const Bytes raw = ToBf16(Weights(5000, 1));
  const Bytes base(raw.begin(), raw.end() - 2);
  EXPECT_FALSE(EncodeAndCheck(raw, DType::kBF16, &base).info.num_sources > 0);
}

TEST(FrameTest, EncodersAndDecodersAreReusable) {
  FrameEncoder encoder;
  FrameDecoder decoder;
  Bytes frame;
  for (const size_t n : {100000, 5, 70000, 1, 262144}) {
    const Bytes base = ToBf16(Weights(n, 1));
    const Bytes raw = ToBf16(Trained(Weights(n, 1), 1e-5f, n));
    const FrameBase from{.address = {}, .digest = {}, .raw = base, .depth = 1, .path_bytes = 10};
    EncodeInput input;
    input.raw = raw;
    input.dtype = DType::kBF16;
    input.base = &from;
    ASSERT_TRUE(encoder.Encode(input, &frame).ok());
    Bytes out(raw.size());
    ASSERT_TRUE(decoder.Decode(frame, {base}, out).ok());
    EXPECT_EQ(out, raw);
  }
}

TEST(FrameTest, RejectsBadSizes) {
  FrameEncoder encoder;
  Bytes frame;
  const Bytes raw(7);
  EncodeInput input;
  EXPECT_EQ(encoder.Encode(input, &frame).code(), StatusCode::kInvalidArgument);
  input.raw = raw;
  input.dtype = DType::kF32;
  EXPECT_EQ(encoder.Encode(input, &frame).message(),
            "chunk has 7 bytes of F32, expected 1 to 67108864 bytes of whole elements");
  input.dtype = static_cast<DType>(77);
  EXPECT_EQ(encoder.Encode(input, &frame).code(), StatusCode::kInvalidArgument);
}

TEST(FrameTest, RejectsBadMagic) {
  Bytes frame = EncodeAndCheck(RandomBytes(100, 1), DType::kU8).frame;
  frame[0] = std::byte{0};
  EXPECT_EQ(ParseFrame(frame).status().message(), "frame header: magic is 0, expected 245");
}

TEST(FrameTest, AnyWrongHeaderByteIsSeen) {
  const Bytes base = ToBf16(Weights(5000, 1));
  const Bytes raw = ToBf16(Trained(Weights(5000, 1), 1e-5f, 1));
  for (const Bytes* from : {static_cast<const Bytes*>(nullptr), &base}) {
    const Bytes good = EncodeAndCheck(raw, DType::kBF16, from).frame;
    for (size_t i = 0; i < (from == nullptr ? 32u : 72u); ++i) {
      Bytes bad = good;
      bad[i] ^= std::byte{1};
      EXPECT_EQ(ParseFrame(bad).status().code(), StatusCode::kCorruption) << i;
    }
  }
}

TEST(FrameTest, EveryTruncationIsSeen) {
  const Bytes base = ToBf16(Weights(5000, 1));
  const Bytes raw = ToBf16(Trained(Weights(5000, 1), 1e-5f, 1));
  const Bytes good = EncodeAndCheck(raw, DType::kBF16, &base).frame;
  FrameDecoder decoder;
  Bytes out(raw.size());
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(decoder.Decode(std::span(good).first(n), {base}, out).code(),
              StatusCode::kCorruption);
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(decoder.Decode(longer, {base}, out).message(),
            "rest of the payload has 1 bytes, expected 0");
}

TEST(FrameTest, DecodeWantsTheRightSizes) {
  const Bytes base = ToBf16(Weights(5000, 1));
  const Bytes raw = ToBf16(Trained(Weights(5000, 1), 1e-5f, 1));
  const Bytes frame = EncodeAndCheck(raw, DType::kBF16, &base).frame;
  FrameDecoder decoder;
  Bytes out(raw.size());
  EXPECT_EQ(decoder.Decode(frame, {}, out).message(), "source has 0 bytes, expected 10000");
  Bytes small(raw.size() - 1);
  EXPECT_EQ(decoder.Decode(frame, {base}, small).message(),
            "output has 9999 bytes, expected 10000");
}

TEST(FrameTest, IsConstantLooksAtWholeElements) {
  Bytes raw(64);
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(i % 4);
  EXPECT_TRUE(IsConstant(raw, 4));
  EXPECT_FALSE(IsConstant(raw, 2));
  raw[63] = std::byte{9};
  EXPECT_FALSE(IsConstant(raw, 4));
  EXPECT_TRUE(IsConstant({}, 4));
}

// Writes the result of ParsePlanes of a frame as "1 raw 1 zstd".
std::string PlanesText(const Bytes& frame) {
  const PlaneUses uses = ParsePlanes(frame).value();
  std::string text;
  for (size_t c = 0; c < uses.size(); ++c) {
    if (uses[c].num_planes == 0) continue;
    text += (text.empty() ? "" : " ") + std::to_string(uses[c].num_planes) + " " +
            std::string(kStreamCoderNames[c]);
  }
  return text;
}

TEST(FrameTest, PlanesAreCountedByCoder) {
  const std::vector<float> weights = Weights(kChunk, 1);
  const Bytes bf16 = ToBf16(weights);
  EXPECT_EQ(PlanesText(EncodeAndCheck(RandomBytes(1 << 20, 1), DType::kF32).frame), "1 raw");
  EXPECT_EQ(PlanesText(EncodeAndCheck(bf16, DType::kBF16).frame), "1 raw 1 zstd");
  EXPECT_EQ(PlanesText(EncodeAndCheck(ToBytes(weights), DType::kF32).frame), "3 raw 1 zstd");
  EXPECT_EQ(PlanesText(EncodeAndCheck(Bytes(1 << 20, std::byte{7}), DType::kF64).frame),
            "8 constant");
  const Bytes next = ToBf16(Trained(weights, 1e-5f, 2));
  EXPECT_EQ(PlanesText(EncodeAndCheck(next, DType::kBF16, &bf16).frame), "1 sparse 1 classes");
  Bytes lone(1 << 20);
  lone[70001] = std::byte{1};
  EXPECT_EQ(PlanesText(EncodeAndCheck(lone, DType::kF32).frame), "3 constant 1 sparse");
}

testing::RoundTrip EncodeRans(const Bytes& raw, DType dtype, const Bytes* base = nullptr) {
  return EncodeAndCheck(raw, dtype, base, Compression::kAuto, Entropy::kRans);
}

TEST(FrameTest, RansFramesHaveVersion2) {
  const std::vector<float> weights = Weights(kChunk, 1);
  const std::vector<float> next = Trained(weights, 1e-5f, 2);
  const Bytes bf16 = ToBf16(weights);
  const Bytes f32 = ToBytes(weights);
  const testing::RoundTrip keyframe = EncodeRans(bf16, DType::kBF16);
  EXPECT_EQ(PlanesText(keyframe.frame), "1 raw 1 rans");
  EXPECT_EQ(keyframe.info.version, 2);
  EXPECT_EQ(PlanesText(EncodeRans(f32, DType::kF32).frame), "3 raw 1 rans");
  // About as small as with zstd.
  const size_t zstd_bytes = EncodeAndCheck(bf16, DType::kBF16).frame.size();
  EXPECT_LT(keyframe.frame.size(), zstd_bytes + bf16.size() / 500);
  EXPECT_EQ(EncodeAndCheck(bf16, DType::kBF16).info.version, 1);
  const testing::RoundTrip delta = EncodeRans(ToBytes(next), DType::kF32, &f32);
  EXPECT_EQ(delta.info.predictor, Predictor::kDelta);
  EXPECT_EQ(delta.info.version, 2);
  // Frames without rANS are for all programs.
  EXPECT_EQ(EncodeRans(RandomBytes(1 << 20, 1), DType::kF32).info.version, 1);
  EXPECT_EQ(EncodeRans(Bytes(4096, std::byte{1}), DType::kF32).info.version, 1);
}

TEST(FrameTest, RansFramesOfAllDTypesAndSizes) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const size_t elements : {1, 256, 257, 1000, 5000}) {
      Bytes raw(elements * ElementBytes(dtype));
      std::mt19937_64 random(elements);
      for (std::byte& byte : raw) byte = static_cast<std::byte>(std::countl_zero(random()));
      Bytes next = raw;
      for (size_t i = 0; i < next.size(); i += 9) next[i] ^= std::byte{1};
      EncodeRans(raw, dtype);
      EncodeRans(next, dtype, &raw);
    }
  }
}

TEST(FrameTest, NewerVersionsAreRefused) {
  Bytes frame = EncodeAndCheck(Bytes(64, std::byte{1}), DType::kU8).frame;
  for (const int version : {0, 4, 255}) {
    frame[1] = static_cast<std::byte>(version);
    EXPECT_EQ(ParseFrame(frame).status().message(),
              "frame header: version is " + std::to_string(version) +
                  ", expected 1 to 3; a newer varve may have written it");
  }
}

TEST(FrameTest, PlanesOfADamagedFrameAreRefused) {
  const Bytes good = EncodeAndCheck(ToBf16(Weights(5000, 1)), DType::kBF16).frame;
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(ParsePlanes(std::span(good).first(n)).status().code(), StatusCode::kCorruption);
  }
  Bytes bad = good;
  bad[33] = std::byte{8};
  EXPECT_EQ(ParsePlanes(bad).status().message(), "plane 0: stream coder is 8, expected 0 to 7");
  bad = good;
  bad.push_back(std::byte{0});
  EXPECT_EQ(ParsePlanes(bad).status().message(), "rest of the payload has 1 bytes, expected 0");
}

TEST(FrameTest, EveryPredictorHasAName) {
  for (int p = 0; p < kNumPredictors; ++p) {
    EXPECT_NE(PredictorName(static_cast<Predictor>(p)), "?");
  }
  EXPECT_EQ(PredictorName(static_cast<Predictor>(99)), "?");
}

}  // namespace

}  // namespace varve::internal
