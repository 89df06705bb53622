// SPDX-License-Identifier: Apache-2.0
//
// Mutated frames of every predictor and plane coder: the decoder says kCorruption or decodes
// something, and never touches memory that is not its own (run it under the `dev` preset).
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/codec/codec_testing.h"
#include "tests/fuzz/frame_fuzz.h"

namespace varve::internal {

namespace {

using testing::Bytes;
using testing::EncodeAndCheck;
using testing::ToBf16;
using testing::ToBytes;
using testing::Trained;
using testing::Weights;

// Returns the input in the form that DecodeHostilePayload takes.
Bytes FuzzInput(const testing::RoundTrip& trip) {
  const std::string input = fuzz::HostileInputOf(trip.frame);
  const auto bytes = std::as_bytes(std::span(input));
  return {bytes.begin(), bytes.end()};
}

// A replay of a step that predicts what was there before.
Bytes ReplayInputOf(const Bytes& before, const Bytes& raw, ReplayTarget target) {
  std::array<FrameBase, kMaxSources> sources;
  for (FrameBase& source : sources) source.raw = before;
  const size_t num_sources = NumSources(target);
  AdamRecipe recipe;
  recipe.beta1 = recipe.beta2 = 1;
  recipe.has_bf16_gradient = true;
  const ReplayInput replay{.replay = {target, recipe},
                           .sources = std::span(sources).first(num_sources),
                           .path_bytes = 1000};
  testing::RoundTrip trip;
  const EncodeInput input{.raw = raw, .dtype = DType::kF32, .replay = &replay};
  EXPECT_TRUE(FrameEncoder().Encode(input, &trip.frame).ok());
  EXPECT_EQ(ParseFrame(trip.frame)->predictor, Predictor::kReplay);
  return FuzzInput(trip);
}

std::vector<Bytes> Corpus() {
  constexpr size_t kElements = 12000;
  const std::vector<float> weights = Weights(kElements, 1);
  const std::vector<float> next = Trained(weights, 2e-5f, 2);
  std::vector<float> decayed = weights;
  for (float& value : decayed) value *= 0.9f;
  const Bytes bf16 = ToBf16(weights);
  const Bytes f32 = ToBytes(weights);
  Bytes sparse(kElements * 2);
  for (size_t i = 0; i < sparse.size(); i += 300) sparse[i] = std::byte{1};
  const auto rans = [](const Bytes& raw, DType dtype, const Bytes* base) {
    return FuzzInput(EncodeAndCheck(raw, dtype, base, Compression::kAuto, Entropy::kRans));
  };
  return {ReplayInputOf(f32, ToBytes(next), ReplayTarget::kMoment),
          ReplayInputOf(f32, ToBytes(next), ReplayTarget::kSquare),
          ReplayInputOf(f32, ToBytes(next), ReplayTarget::kWeight),
          rans(bf16, DType::kBF16, nullptr),
          rans(ToBytes(next), DType::kF32, &f32),
          rans(sparse, DType::kU8, nullptr),
          FuzzInput(EncodeAndCheck(bf16, DType::kBF16)),
          FuzzInput(EncodeAndCheck(f32, DType::kF32)),
          FuzzInput(EncodeAndCheck(ToBf16(next), DType::kBF16, &bf16)),
          FuzzInput(EncodeAndCheck(ToBytes(next), DType::kF32, &f32)),
          FuzzInput(EncodeAndCheck(ToBytes(decayed), DType::kF32, &f32)),
          FuzzInput(EncodeAndCheck(sparse, DType::kU8)),
          FuzzInput(EncodeAndCheck(sparse, DType::kI64))};
}

TEST(HostileFrameTest, MutatedPayloadsDoNoHarm) {
  std::mt19937_64 random(20260101);
  const std::vector<Bytes> corpus = Corpus();
  for (int round = 0; round < 1500; ++round) {
    Bytes input = corpus[random() % corpus.size()];
    // Mutations near the front hit headers and tables, which matter most.
    const size_t reach = random() % 2 == 0 ? std::min<size_t>(input.size(), 200) : input.size();
    for (uint64_t m = random() % 4 + 1; m > 0; --m) {
      input[random() % reach] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) input.resize(random() % input.size() + 1);
    fuzz::DecodeHostilePayload(input);
  }
}

TEST(HostileFrameTest, RandomPayloadsDoNoHarm) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 3000; ++round) {
    Bytes input = testing::RandomBytes(random() % 300 + 1, random());
    // Small coder tags and lengths get further than random ones.
    for (std::byte& byte : input) {
      if (random() % 2 == 0) byte &= std::byte{7};
    }
    fuzz::DecodeHostilePayload(input);
  }
}

}  // namespace

}  // namespace varve::internal
