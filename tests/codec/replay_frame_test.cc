// SPDX-License-Identifier: Apache-2.0
//
// Frames that replay a step of an optimizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "codec/frame.h"
#include "codec/frame_header.h"
#include "tests/codec/predict/optimizer.h"

namespace varve::internal {

namespace {

using testing::Bytes;
using testing::Optimizer;
using testing::OptimizerState;
using testing::RandomBytes;
using testing::StateBytes;
using testing::TrainedBy;

StateBytes FirstOf(const StateBytes& whole, size_t num_elements) {
  StateBytes part = whole;
  for (Bytes* const bytes : {&part.moment, &part.square, &part.weight}) {
    bytes->resize(4 * num_elements);
  }
  return part;
}

// A step of an optimizer, with a hint that may be wrong.
struct Step {
  explicit Step(const Optimizer& optimizer, bool is_bf16)
      : before(TrainedBy(optimizer)),
        after(optimizer.Next(TrainedBy(optimizer), is_bf16, 99)),
        recipe(FitAdam(optimizer.step, before.spans(), after.spans())) {}
  Step(const OptimizerState& from, const OptimizerState& to, const AdamStep& step)
      : before(from), after(to), recipe(FitAdam(step, before.spans(), after.spans())) {}

  FrameSourceBytes SourcesOf(ReplayTarget target) const {
    switch (target) {
      case ReplayTarget::kMoment:
        return {before.moment};
      case ReplayTarget::kSquare:
        return {before.moment, after.moment, before.square};
      default:
        return {after.moment, after.square, before.weight};
    }
  }
  const Bytes& WantedOf(ReplayTarget target) const {
    switch (target) {
      case ReplayTarget::kMoment:
        return after.moment;
      case ReplayTarget::kSquare:
        return after.square;
      default:
        return after.weight;
    }
  }

  StateBytes before, after;
  AdamRecipe recipe;
};

struct Encoded {
  Bytes frame;
  FrameInfo info;
};

// Encodes, parses, decodes and compares.
Encoded EncodeStep(const Step& step, ReplayTarget target, const Bytes& raw, uint32_t depth = 3,
                   Entropy entropy = Entropy::kZstd, Compression compression = Compression::kAuto) {
  const FrameSourceBytes sources = step.SourcesOf(target);
  std::array<FrameBase, kMaxSources> bases;
  for (size_t i = 0; i < kMaxSources; ++i) {
    bases[i].address = {.save_id = 7, .ordinal = static_cast<uint32_t>(i)};
    bases[i].digest = ComputeDigest(1, sources[i]);
    bases[i].raw = sources[i];
  }
  const ReplayInput replay{.replay = {target, step.recipe},
                           .sources = std::span(bases).first(NumSources(target)),
                           .depth = depth,
                           .path_bytes = 1000};
  EncodeInput input{.raw = raw,
                    .dtype = DType::kF32,
                    .digest = ComputeDigest(1, raw),
                    .replay = &replay,
                    .compression = compression,
                    .entropy = entropy};
  Encoded encoded;
  const Status status = FrameEncoder().Encode(input, &encoded.frame);
  EXPECT_TRUE(status.ok()) << status.ToString();
  const Result<FrameInfo> info = ParseFrame(encoded.frame);
  EXPECT_TRUE(info.ok()) << info.status().ToString();
  if (!info.ok()) return encoded;
  encoded.info = *info;
  EXPECT_EQ(info->digest, input.digest);
  EXPECT_TRUE(ParsePlanes(encoded.frame).ok());
  Bytes out(info->raw_bytes);
  const Status decoded = FrameDecoder().Decode(
      encoded.frame, info->num_sources > 0 ? sources : FrameSourceBytes(), out);
  EXPECT_TRUE(decoded.ok()) << decoded.ToString();
  EXPECT_TRUE(out == raw) << "decoded bytes differ, " << PredictorName(info->predictor);
  return encoded;
}

constexpr ReplayTarget kTargets[] = {ReplayTarget::kMoment, ReplayTarget::kSquare,
                                     ReplayTarget::kWeight};

TEST(ReplayFrameTest, WithBf16GradientsOnlyTheseAreStored) {
  const Step step({}, /*is_bf16=*/true);
  for (const ReplayTarget target : kTargets) {
    SCOPED_TRACE(static_cast<int>(target));
    const Bytes& raw = step.WantedOf(target);
    const auto [frame, info] = EncodeStep(step, target, raw);
    ASSERT_EQ(info.predictor, Predictor::kReplay);
    EXPECT_EQ(info.version, 3);
    EXPECT_EQ(info.depth, 4u);
    EXPECT_EQ(info.path_bytes, 1000 + frame.size());
    ASSERT_EQ(info.num_sources, NumSources(target));
    for (size_t i = 0; i < info.num_sources; ++i) {
      EXPECT_EQ(info.sources()[i].address, (ChunkAddress{7, static_cast<uint32_t>(i)}));
      EXPECT_EQ(info.sources()[i].digest, ComputeDigest(1, step.SourcesOf(target)[i]));
    }
    EXPECT_EQ(info.base()->address.ordinal, info.num_sources - 1u);
    const AdamRecipe& recipe = info.replay->recipe;
    EXPECT_EQ(info.replay->target, target);
    EXPECT_EQ(recipe.step_size, step.recipe.step_size);
    EXPECT_EQ(recipe.gradient_scale, step.recipe.gradient_scale);
    EXPECT_EQ(recipe.has_bf16_gradient, true);
    if (target == ReplayTarget::kMoment) {
      EXPECT_LT(frame.size(), raw.size() / 2);
    } else {
      EXPECT_EQ(frame.size(), ReplayHeaderBytes(target) + 1);
    }
  }
}

TEST(ReplayFrameTest, WithFp32GradientsResidualsAreStored) {
  const Step step({}, /*is_bf16=*/false);
  const auto square = EncodeStep(step, ReplayTarget::kSquare, step.after.square);
  EXPECT_EQ(square.info.predictor, Predictor::kReplay);
  EXPECT_LT(square.frame.size(), step.after.square.size() / 10);
  const auto weight = EncodeStep(step, ReplayTarget::kWeight, step.after.weight);
  EXPECT_EQ(weight.frame.size(), ReplayHeaderBytes(ReplayTarget::kWeight) + 1);
}

TEST(ReplayFrameTest, AnySizeAndCoder) {
  const Step whole({}, /*is_bf16=*/false);
  for (const size_t num_elements : {1, 2, 15, 16, 17, 1023, 1024, 1025, 4999}) {
    Step part = whole;
    part.before = FirstOf(whole.before, num_elements);
    part.after = FirstOf(whole.after, num_elements);
    for (const ReplayTarget target : kTargets) {
      for (const Entropy entropy : {Entropy::kZstd, Entropy::kRans}) {
        for (const Compression compression : {Compression::kAuto, Compression::kMax}) {
          EncodeStep(part, target, part.WantedOf(target), 1, entropy, compression);
        }
      }
    }
  }
}

// A wrong hint, and a state that no optimizer has made, cost bytes and never a bit.
TEST(ReplayFrameTest, AWrongStepIsStillExact) {
  Step step({}, /*is_bf16=*/false);
  step.recipe.step_size *= 1.5f;
  step.recipe.beta2 = 0.5f;
  step.recipe.moment = MomentFormula::kLerp;
  const Bytes noise = RandomBytes(step.after.weight.size(), 3);
  for (const ReplayTarget target : kTargets) {
    EncodeStep(step, target, step.WantedOf(target));
    EXPECT_EQ(EncodeStep(step, target, noise).info.predictor, Predictor::kRaw);
  }
}

TEST(ReplayFrameTest, ADeepPathIsNotMadeDeeper) {
  const Step step({}, /*is_bf16=*/true);
  const Bytes& raw = step.after.weight;
  EXPECT_EQ(EncodeStep(step, ReplayTarget::kWeight, raw, 7).info.predictor, Predictor::kReplay);
  EXPECT_NE(EncodeStep(step, ReplayTarget::kWeight, raw, 8).info.predictor, Predictor::kReplay);
}

TEST(ReplayFrameTest, InputsThatDoNotFitAreRefused) {
  const Bytes raw(400), shorter(396);
  const FrameBase bases[] = {{.address = {}, .digest = {}, .raw = raw},
                             {.address = {}, .digest = {}, .raw = shorter},
                             {.address = {}, .digest = {}, .raw = raw}};
  ReplayInput replay{.replay = {.target = ReplayTarget::kSquare, .recipe = {}}, .sources = bases};
  EncodeInput input{.raw = raw, .dtype = DType::kF32, .replay = &replay};
  Bytes frame;
  EXPECT_EQ(FrameEncoder().Encode(input, &frame).message(),
            "a replay of 400 bytes, expected 3 sources of that size");
  replay.sources = std::span(bases).first(1);
  EXPECT_FALSE(FrameEncoder().Encode(input, &frame).ok());
  replay.replay.target = ReplayTarget::kMoment;
  EXPECT_TRUE(FrameEncoder().Encode(input, &frame).ok());
  input.dtype = DType::kU8;
  EXPECT_EQ(FrameEncoder().Encode(input, &frame).message(), "a replay of U8, expected F32");
}

// Integer arithmetic and numbers that IEEE 754 defines, so that every machine makes the same step.
// Formulas that no tensor of a target needs make no difference to its frame.
Step GoldenStep(bool is_bf16, int formula) {
  uint32_t random = 1;
  const auto next = [&random](uint32_t mask, uint32_t exponent) {
    random = random * 1664525u + 1013904223u;
    const uint32_t bits = (random & 0x80000000u) | (exponent - (random >> 29)) << 23;
    return std::bit_cast<float>(bits | (random >> 6 & mask));
  };
  Optimizer optimizer;
  optimizer.step.number = 1;  // no power is rounded
  optimizer.step.gradient_scale = 0.5;
  optimizer.moment = static_cast<MomentFormula>(formula);
  optimizer.square = static_cast<SquareFormula>(formula);
  optimizer.weight = static_cast<WeightFormula>(std::min(formula, kNumWeightFormulas - 1));
  OptimizerState before, after;
  for (int i = 0; i < 4001; ++i) {
    before.moment.push_back(next(0x7FFFFF, 115));
    before.square.push_back(std::abs(next(0x7FFFFF, 100)));
    before.weight.push_back(next(0x7FFFFF, 121));
    const float gradient = next(is_bf16 ? 0x7F0000 : 0x7FFFFF, 118) * 0.5f;
    after.moment.push_back(optimizer.NextMoment(before.moment.back(), gradient));
    after.square.push_back(optimizer.NextSquare(before.square.back(), gradient));
    after.weight.push_back(
        optimizer.NextWeight(before.weight.back(), after.moment.back(), after.square.back()));
  }
  Step step(before, after, optimizer.step);
  step.recipe.moment = optimizer.moment;
  step.recipe.square = optimizer.square;
  step.recipe.weight = optimizer.weight;
  return step;
}

struct Golden {
  std::string name;
  ReplayTarget target;
  bool is_bf16;
  int formula;
};

// Each formula, and a chunk that is exactly its prediction.
std::vector<Golden> Goldens() {
  std::vector<Golden> goldens = {{"replay_moment", ReplayTarget::kMoment, true, 0},
                                 {"replay_square", ReplayTarget::kSquare, false, 0},
                                 {"replay_square_exact", ReplayTarget::kSquare, true, 0},
                                 {"replay_weight", ReplayTarget::kWeight, false, 0}};
  const auto add = [&](const std::string& name, ReplayTarget target, bool is_bf16, int num) {
    for (int formula = 1; formula < num; ++formula) {
      goldens.push_back({name + "_formula" + std::to_string(formula), target, is_bf16, formula});
    }
  };
  add("replay_moment", ReplayTarget::kMoment, true, kNumMomentFormulas);
  add("replay_square", ReplayTarget::kSquare, false, kNumSquareFormulas);
  add("replay_weight", ReplayTarget::kWeight, false, kNumWeightFormulas);
  return goldens;
}

int FormulaOf(const FrameReplay& replay) {
  switch (replay.target) {
    case ReplayTarget::kMoment:
      return static_cast<int>(replay.recipe.moment);
    case ReplayTarget::kSquare:
      return static_cast<int>(replay.recipe.square);
    default:
      return static_cast<int>(replay.recipe.weight);
  }
}

// Replays as earlier versions wrote them must decode for ever. VARVE_WRITE_GOLDEN=1 writes missing
// files.
TEST(ReplayFrameTest, OldFramesDecode) {
  for (const auto& [name, target, is_bf16, formula] : Goldens()) {
    SCOPED_TRACE(name);
    const Step step = GoldenStep(is_bf16, formula);
    const Bytes& raw = step.WantedOf(target);
    const auto path = std::filesystem::path(VARVE_GOLDEN_FRAMES) / (name + ".frame");
    if (std::getenv("VARVE_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(path)) {
      const Bytes frame = EncodeStep(step, target, raw).frame;
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(frame.data()),
                 static_cast<std::streamsize>(frame.size()));
    }
    std::ifstream in(path, std::ios::binary);
    ASSERT_TRUE(in);
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const std::span<const std::byte> frame = std::as_bytes(std::span(text));
    const Result<FrameInfo> info = ParseFrame(frame);
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    ASSERT_EQ(info->predictor, Predictor::kReplay);
    EXPECT_EQ(FormulaOf(*info->replay), formula);
    EXPECT_EQ(info->digest, ComputeDigest(1, raw));
    Bytes out(info->raw_bytes);
    const Status status = FrameDecoder().Decode(frame, step.SourcesOf(target), out);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(out == raw);
  }
}

// Headers whose checksum is right.
TEST(ReplayFrameTest, AMalformedHeaderIsNamed) {
  const Step step({}, /*is_bf16=*/true);
  const FrameInfo good = EncodeStep(step, ReplayTarget::kWeight, step.after.weight).info;
  const auto expect = [&](const std::string& what, const std::function<void(FrameInfo*)>& change) {
    FrameInfo info = good;
    change(&info);
    Bytes frame(HeaderBytes(info) + 1);
    WriteHeader(info, frame);
    EXPECT_EQ(ParseFrame(frame).status().message(), "frame header: " + what);
  };
  expect("formula of the moment is 5, expected 0 to 4",
         [](FrameInfo* info) { info->replay->recipe.moment = static_cast<MomentFormula>(5); });
  expect("formula of the square is 5, expected 0 to 4",
         [](FrameInfo* info) { info->replay->recipe.square = static_cast<SquareFormula>(5); });
  expect("formula of the weight is 3, expected 0 to 2",
         [](FrameInfo* info) { info->replay->recipe.weight = static_cast<WeightFormula>(3); });
  expect("a constant of the step is no number", [](FrameInfo* info) {
    info->replay->recipe.eps = std::numeric_limits<float>::infinity();
  });
  expect("replay of BF16, expected F32", [](FrameInfo* info) { info->dtype = DType::kBF16; });
  expect("version of a replay is 2, expected 3", [](FrameInfo* info) { info->version = 2; });
  expect("depth is 1, expected at least 2", [](FrameInfo* info) { info->depth = 1; });
  expect("path is 0 bytes, expected more than the 173 of the frame itself",
         [](FrameInfo* info) { info->path_bytes = 0; });
}

TEST(ReplayFrameTest, DamageIsNamed) {
  const Step step({}, /*is_bf16=*/true);
  for (const ReplayTarget target : kTargets) {
    const Bytes good = EncodeStep(step, target, step.WantedOf(target)).frame;
    Bytes out(step.after.weight.size());
    FrameDecoder decoder;
    for (size_t n = 0; n < good.size(); n += n < 200 ? 1 : 97) {
      const auto cut = std::span(good).first(n);
      EXPECT_EQ(decoder.Decode(cut, step.SourcesOf(target), out).code(), StatusCode::kCorruption);
    }
    Bytes longer = good;
    longer.push_back(std::byte{0});
    EXPECT_EQ(decoder.Decode(longer, step.SourcesOf(target), out).message(),
              "rest of the payload has 1 bytes, expected 0");
    EXPECT_EQ(decoder.Decode(good, {}, out).code(), StatusCode::kCorruption);
    for (size_t i = 0; i < HeaderBytes(*ParseFrame(good)); ++i) {
      Bytes bad = good;
      bad[i] ^= std::byte{1};
      EXPECT_FALSE(ParseFrame(bad).ok()) << i;
    }
  }
}

}  // namespace

}  // namespace varve::internal
