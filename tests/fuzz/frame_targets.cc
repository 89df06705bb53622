// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_header.h"
#include "tests/fuzz/frame_fuzz.h"
#include "tests/fuzz/targets.h"

namespace varve::internal::fuzz {
namespace {

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
        "replay_moment", "replay_square", "replay_weight", "scaled_delta_f32"}) {
    frames.push_back(ReadGolden(std::string("frames/") + name + ".frame"));
    payloads.push_back(HostileInputOf(std::as_bytes(std::span(frames.back()))));
  }
  return {{"frame_header", ParseHostileFrame, frames}, {"frame", DecodeHostilePayload, payloads}};
}

}  // namespace varve::internal::fuzz
