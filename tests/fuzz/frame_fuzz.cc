// SPDX-License-Identifier: Apache-2.0
//
// Decodes hostile frames. The input is a predictor, a dtype, a size, the step of a replay, and a
// payload. The header is made around it with a correct checksum, which no mutation would ever hit.
// Nothing may crash, hang or touch memory outside the buffers. Any Status is fine.
#include "tests/fuzz/frame_fuzz.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/util.h"
#include "codec/frame_header.h"

namespace varve::internal::fuzz {

namespace {

constexpr size_t kHeadBytes = 5;   // predictor, dtype, size
constexpr size_t kStepBytes = 44;  // as in a header: target, formulas, constants, BF16 gradients
constexpr size_t kStepAt = 24;     // in a header

// Any input is a step that a header may have, but for its constants.
FrameReplay StepOf(std::span<const std::byte> input) {
  const auto choice = [&](size_t i, int num) { return std::to_integer<int>(input[i]) % num; };
  FrameReplay replay;
  replay.target = static_cast<ReplayTarget>(choice(0, kNumReplayTargets));
  AdamRecipe& recipe = replay.recipe;
  recipe.moment = static_cast<MomentFormula>(choice(1, kNumMomentFormulas));
  recipe.square = static_cast<SquareFormula>(choice(2, kNumSquareFormulas));
  recipe.weight = static_cast<WeightFormula>(choice(3, kNumWeightFormulas));
  for (size_t i = 0; i < AdamRecipe::kConstants.size(); ++i) {
    std::memcpy(&(recipe.*AdamRecipe::kConstants[i]), input.data() + 4 + 4 * i, sizeof(float));
  }
  recipe.has_bf16_gradient = choice(kStepBytes - 4, 2) != 0;
  return replay;
}

}  // namespace

std::string HostileInputOf(std::span<const std::byte> frame) {
  const auto info = ParseFrame(frame);
  if (!info.ok()) return "";
  std::string input = {static_cast<char>(info->predictor), static_cast<char>(info->dtype)};
  for (int i = 0; i < 3; ++i) input += static_cast<char>(info->raw_bytes >> (8 * i));
  if (info->replay.has_value()) input += AsString(frame.subspan(kStepAt, kStepBytes));
  return input.append(AsString(frame.subspan(HeaderBytes(*info))));
}

void DecodeHostilePayload(std::span<const std::byte> input) {
  // Keeps a run short. The code has no limit of its own.
  constexpr size_t kMaxRaw = size_t{1} << 18;
  if (input.size() < 6) return;
  FrameInfo info;
  info.predictor = static_cast<Predictor>(std::to_integer<int>(input[0]) % kNumPredictors);
  info.dtype = static_cast<DType>(std::to_integer<int>(input[1]) % kNumDTypes);
  const size_t size = std::to_integer<size_t>(input[2]) | std::to_integer<size_t>(input[3]) << 8 |
                      std::to_integer<size_t>(input[4]) << 16;
  std::span<const std::byte> payload = input.subspan(kHeadBytes);
  size_t num_sources = HasSources(info.predictor) ? 1 : 0;
  if (info.predictor == Predictor::kReplay) {
    if (payload.size() < kStepBytes) return;
    info.version = 3;
    info.dtype = DType::kF32;
    info.replay = StepOf(payload);
    payload = payload.subspan(kStepBytes);
    num_sources = NumSources(info.replay->target);
  }
  const auto element = static_cast<size_t>(std::max(DTypeBits(info.dtype) / 8, 1));
  info.raw_bytes = static_cast<uint32_t>(std::max(size % kMaxRaw / element * element, element));
  for (size_t i = 0; i < num_sources; ++i) {
    info.AddSource({.address = {.save_id = 1, .ordinal = static_cast<uint32_t>(i)}, .digest = {}});
  }
  if (num_sources > 0) {
    info.depth = 2;
    info.path_bytes = ~uint64_t{0};
  }
  const size_t header_bytes = HeaderBytes(info);
  // Exact sizes, so that the address sanitizer sees any byte past the end.
  const std::unique_ptr<std::byte[]> frame(new std::byte[header_bytes + payload.size()]);
  WriteHeader(info, std::span(frame.get(), header_bytes));
  std::copy(payload.begin(), payload.end(), frame.get() + header_bytes);
  std::vector<std::byte> base(info.raw_bytes);
  for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<std::byte>(i * 37 >> 3);
  const std::unique_ptr<std::byte[]> out(new std::byte[info.raw_bytes]);
  const std::span<const std::byte> bytes(frame.get(), header_bytes + payload.size());
  const bool has_planes = ParsePlanes(bytes).ok();
  FrameSourceBytes sources;
  for (size_t i = 0; i < num_sources; ++i) sources[i] = base;
  FrameDecoder decoder;
  const Status decoded = decoder.Decode(bytes, sources, {out.get(), info.raw_bytes});
  if (decoded.ok() && !has_planes) std::abort();  // a frame that decodes has planes
}

}  // namespace varve::internal::fuzz
