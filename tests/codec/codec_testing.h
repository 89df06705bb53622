// SPDX-License-Identifier: Apache-2.0
//
// Inputs and round trips that the codec tests share. All randomness is seeded.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "codec/frame.h"
#include "codec/frame_header.h"
#include "codec/planes/layout.h"
#include "codec/predict/rounded_copy.h"
#include "tests/codec/made_values.h"

namespace varve::internal::testing {

inline Bytes ToBf16(const std::vector<float>& values) {
  Bytes copy(values.size() * 2);
  MakeRoundedCopy(DType::kBF16, ToBytes(values), copy);
  return copy;
}
inline Bytes ToF16(const std::vector<float>& values) {
  Bytes copy(values.size() * 2);
  MakeRoundedCopy(DType::kF16, ToBytes(values), copy);
  return copy;
}

struct RoundTrip {
  Bytes frame;
  FrameInfo info;
};

// A frame is a header, the front of its payload (transform, scale, thresholds) and a stream a
// plane.
inline void ExpectPlanesAddUp(const Bytes& frame, const FrameInfo& info) {
  const Result<PlaneUses> uses = ParsePlanes(frame);
  ASSERT_TRUE(uses.ok()) << uses.status().ToString();
  size_t num_planes = 0;
  size_t bytes = HeaderBytes(info);
  for (const PlaneUse& use : *uses) {
    num_planes += use.num_planes;
    bytes += use.bytes;
  }
  const bool raw = info.predictor == Predictor::kRaw;
  EXPECT_EQ(num_planes, raw ? 1 : UnitBytes(info.dtype));
  EXPECT_GE(frame.size(), bytes + (raw ? 0 : 1));
  EXPECT_LE(frame.size(), bytes + (raw ? 0 : 1 + 4 + kMaxClasses));
}

// Encodes, parses, decodes and compares.
inline RoundTrip EncodeAndCheck(const Bytes& raw, DType dtype, const Bytes* base = nullptr,
                                Compression compression = Compression::kAuto,
                                Entropy entropy = Entropy::kZstd) {
  FrameBase frame_base;
  EncodeInput input;
  input.raw = raw;
  input.dtype = dtype;
  input.digest = ComputeDigest(1, raw);
  input.compression = compression;
  input.entropy = entropy;
  if (base != nullptr) {
    frame_base.address = {.save_id = 3, .ordinal = 4};
    frame_base.digest = ComputeDigest(1, *base);
    frame_base.raw = *base;
    frame_base.path_bytes = 100;
    input.base = &frame_base;
  }
  RoundTrip result;
  FrameEncoder encoder;
  const Status encoded = encoder.Encode(input, &result.frame);
  EXPECT_TRUE(encoded.ok()) << encoded.ToString();
  EXPECT_LE(result.frame.size(), raw.size() + 64);
  const Result<FrameInfo> info = ParseFrame(result.frame);
  EXPECT_TRUE(info.ok()) << info.status().ToString();
  if (!info.ok()) return result;
  result.info = *info;
  EXPECT_EQ(info->digest, input.digest);
  EXPECT_EQ(info->dtype, dtype);
  Bytes out(info->raw_bytes);
  FrameDecoder decoder;
  const Bytes none;
  const Status decoded = decoder.Decode(result.frame, {info->num_sources > 0 ? *base : none}, out);
  EXPECT_TRUE(decoded.ok()) << decoded.ToString();
  EXPECT_TRUE(out == raw) << "decoded bytes differ, dtype " << DTypeName(dtype) << ", "
                          << raw.size() << " bytes, " << PredictorName(info->predictor);
  ExpectPlanesAddUp(result.frame, *info);
  return result;
}

inline size_t ElementBytes(DType dtype) {
  return static_cast<size_t>(std::max(DTypeBits(dtype) / 8, 1));
}

}  // namespace varve::internal::testing
