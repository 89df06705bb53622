// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_header.h"
#include "tests/fuzz/frame_fuzz.h"
#include "tests/fuzz/targets.h"

namespace varve::internal::fuzz {
namespace {

// Returns the input in the form that DecodeHostilePayload takes.
std::string PayloadOf(const std::string& frame) {
  const auto bytes = std::as_bytes(std::span(frame));
  const auto info = ParseFrame(bytes);
  if (!info.ok()) return "";
  std::string input = {static_cast<char>(info->predictor), static_cast<char>(info->dtype)};
  for (int i = 0; i < 3; ++i) input += static_cast<char>(info->raw_bytes >> (8 * i));
  return input + frame.substr(HeaderBytes(info->predictor));
}

void ParseHostileFrame(std::span<const std::byte> input) {
  const ExactBytes exact(input);
  if (ParseFrame(exact.bytes()).ok()) ParsePlanes(exact.bytes()).status().IgnoreError();
}

}  // namespace

std::vector<FuzzTarget> FrameTargets() {
  std::vector<std::string> frames, payloads;
  for (const char* name :
       {"constant_f32", "delta_bf16", "delta_f32", "delta_f32_rans", "delta_i32", "keyframe_bf16",
        "keyframe_bf16_rans", "keyframe_f32", "keyframe_f8_flat", "keyframe_f8_nibbles",
        "keyframe_f8_rans_low_bits", "keyframe_i32_matches", "keyframe_u8_sparse", "raw_u8",
        "scaled_delta_f32"}) {
    frames.push_back(ReadGolden(std::string("frames/") + name + ".frame"));
    payloads.push_back(PayloadOf(frames.back()));
  }
  return {{"frame_header", ParseHostileFrame, frames}, {"frame", DecodeHostilePayload, payloads}};
}

}  // namespace varve::internal::fuzz
