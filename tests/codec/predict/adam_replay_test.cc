// SPDX-License-Identifier: Apache-2.0
#include "codec/predict/adam_replay.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/codec/codec_testing.h"
#include "tests/codec/levels.h"
#include "tests/codec/predict/optimizer.h"

#if VARVE_X86
#include <immintrin.h>
#endif

namespace varve::internal {

namespace {

using testing::Bytes;
using testing::kElements;
using testing::Optimizer;
using testing::OptimizerState;
using testing::RandomBytes;
using testing::StateBytes;
using testing::ToBytes;
using testing::TrainedBy;

size_t CountExact(const Bytes& a, const Bytes& b) {
  size_t exact = 0;
  for (size_t i = 0; i < a.size(); i += 4) exact += std::memcmp(&a[i], &b[i], 4) == 0 ? 1 : 0;
  return exact;
}

Bytes RecoveredGradient(const AdamRecipe& recipe, const StateBytes& before,
                        const StateBytes& after) {
  Bytes gradient(before.moment.size() / 2);
  RecoverGradient(recipe, before.moment, after.moment, gradient);
  return gradient;
}

bool IsWeightExact(const AdamRecipe& recipe, const StateBytes& before, const StateBytes& after) {
  Bytes weight(before.weight.size());
  PredictWeight(recipe, after.moment, after.square, before.weight, weight);
  return weight == after.weight;
}

void ExpectExact(const Optimizer& optimizer) {
  const OptimizerState before = TrainedBy(optimizer);
  const StateBytes from(before), to(optimizer.Next(before, /*is_bf16=*/true, 99));
  const AdamRecipe recipe = FitAdam(optimizer.step, from.spans(), to.spans());
  EXPECT_TRUE(recipe.has_bf16_gradient);
  const Bytes gradient = RecoveredGradient(recipe, from, to);
  Bytes moment(from.moment.size()), square(moment.size()), weight(moment.size());
  PredictMoment(recipe, from.moment, gradient, moment);
  PredictSquare(recipe, from.moment, moment, from.square, square);
  PredictWeight(recipe, moment, square, from.weight, weight);
  EXPECT_TRUE(moment == to.moment && square == to.square && weight == to.weight);
}

TEST(AdamReplayTest, EachFormulaIsFoundAndExact) {
  for (int i = 0; i < kNumMomentFormulas; ++i) {
    SCOPED_TRACE("moment " + std::to_string(i));
    ExpectExact({.moment = static_cast<MomentFormula>(i)});
  }
  for (int i = 0; i < kNumSquareFormulas; ++i) {
    SCOPED_TRACE("square " + std::to_string(i));
    ExpectExact({.square = static_cast<SquareFormula>(i)});
  }
  for (int i = 0; i < kNumWeightFormulas; ++i) {
    SCOPED_TRACE("weight " + std::to_string(i));
    ExpectExact({.weight = static_cast<WeightFormula>(i)});
  }
}

// Rounding hides a part of the gradient, but the weight needs none.
TEST(AdamReplayTest, GradientsOfFp32PredictNearlyAll) {
  const Optimizer optimizer;
  const OptimizerState before = TrainedBy(optimizer);
  const StateBytes from(before), to(optimizer.Next(before, /*is_bf16=*/false, 99));
  const AdamRecipe recipe = FitAdam(optimizer.step, from.spans(), to.spans());
  EXPECT_FALSE(recipe.has_bf16_gradient);
  EXPECT_TRUE(IsWeightExact(recipe, from, to));
  Bytes square(from.square.size());
  PredictSquare(recipe, from.moment, to.moment, from.square, square);
  EXPECT_GE(CountExact(square, to.square), kElements * 8 / 10);
}

// As biases and norms often do.
TEST(AdamReplayTest, AWeightThatDoesNotDecayIsFound) {
  Optimizer optimizer;
  const OptimizerState before = TrainedBy(optimizer);
  const double decay = std::exchange(optimizer.step.weight_decay, 0.0);
  const StateBytes from(before), to(optimizer.Next(before, /*is_bf16=*/true, 99));
  optimizer.step.weight_decay = decay;
  const AdamRecipe recipe = FitAdam(optimizer.step, from.spans(), to.spans());
  EXPECT_EQ(recipe.decay, 1.0f);
  EXPECT_TRUE(IsWeightExact(recipe, from, to));
}

// Every sum of squares is divided by 1 late in a training.
TEST(AdamReplayTest, ALateStepIsExact) {
  Optimizer optimizer;
  const OptimizerState before = TrainedBy(optimizer);
  optimizer.step.number = 5000;
  const StateBytes from(before), to(optimizer.Next(before, /*is_bf16=*/true, 99));
  const AdamRecipe recipe = FitAdam(optimizer.step, from.spans(), to.spans());
  EXPECT_EQ(recipe.sqrt_bias2, 1.0f);
  EXPECT_TRUE(IsWeightExact(recipe, from, to));
}

// Any bits: numbers of every size, infinities, NaNs. No pointer is aligned.
struct Predicted {
  Bytes moment, square, weight, gradient;
  bool operator==(const Predicted&) const = default;
};
Predicted PredictAll(const AdamRecipe& recipe, size_t n, CpuLevel level) {
  const Bytes inputs[] = {RandomBytes(4 * n + 1, 1), RandomBytes(4 * n + 1, 2),
                          RandomBytes(4 * n + 1, 3), RandomBytes(2 * n + 1, 4)};
  const auto in = [&](int i) { return std::span(inputs[i]).subspan(1); };
  Predicted out{Bytes(4 * n), Bytes(4 * n), Bytes(4 * n), Bytes(2 * n)};
  PredictMoment(recipe, in(0), in(3), out.moment, level);
  PredictSquare(recipe, in(0), in(1), in(2), out.square, level);
  PredictWeight(recipe, in(0), in(1), in(2), out.weight, level);
  RecoverGradient(recipe, in(0), in(1), out.gradient, level);
  return out;
}

AdamRecipe RecipeOf(int formula) {
  AdamRecipe recipe{.beta1 = 0.9f,
                    .rest1 = 0.1f,
                    .beta2 = 0.95f,
                    .rest2 = 0.05f,
                    .decay = 0.999f,
                    .step_size = 1e-3f,
                    .sqrt_bias2 = 0.5f,
                    .eps = 1e-8f,
                    .gradient_scale = 0.7f};
  recipe.has_bf16_gradient = formula % 2 == 0;
  recipe.moment = static_cast<MomentFormula>(formula % kNumMomentFormulas);
  recipe.square = static_cast<SquareFormula>(formula % kNumSquareFormulas);
  recipe.weight = static_cast<WeightFormula>(formula % kNumWeightFormulas);
  return recipe;
}

TEST(AdamReplayTest, LevelsAgreeOnAnyBits) {
  for (int formula = 0; formula < 20; ++formula) {
    AdamRecipe recipe = RecipeOf(formula);
    if (formula >= 10) recipe.sqrt_bias2 = 1;
    for (const size_t n : {0, 1, 15, 16, 1000, 20001}) {
      const Predicted portable = PredictAll(recipe, n, CpuLevel::kPortable);
      for (const CpuLevel level : Levels()) {
        EXPECT_EQ(PredictAll(recipe, n, level), portable)
            << "formula " << formula << ", " << n << " elements, level " << static_cast<int>(level);
      }
    }
  }
}

// Which of two NaNs comes out of an operation differs between processors.
TEST(AdamReplayTest, NoNumberIsPredictedFromNaNs) {
  const std::vector<uint32_t> nans = {0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001};
  std::vector<uint32_t> before, after;
  for (const uint32_t a : nans) {
    for (const uint32_t b : nans) {
      before.insert(before.end(), {a, 0, a});
      after.insert(after.end(), {b, b, 0});
    }
  }
  const Bytes ones = ToBytes(std::vector<float>(before.size(), 1.0f));
  for (int formula = 0; formula < 10; ++formula) {
    const AdamRecipe recipe = RecipeOf(formula);
    Bytes out(ones.size()), gradient(ones.size() / 2);
    for (const CpuLevel level : Levels()) {
      PredictSquare(recipe, ToBytes(before), ToBytes(after), ones, out, level);
      EXPECT_TRUE(out == ones);
      PredictWeight(recipe, ToBytes(after), ToBytes(before), ones, out, level);
      RecoverGradient(recipe, ToBytes(before), ToBytes(after), gradient, level);
      EXPECT_TRUE(gradient == ToBytes(std::vector<uint16_t>(before.size(), 0x7FC0)));
    }
  }
}

#if VARVE_X86
// A trainer may flush denormals and round in another way.
TEST(AdamReplayTest, TheFloatEnvironmentChangesNothing) {
  for (int formula = 0; formula < 10; ++formula) {
    for (const CpuLevel level : Levels()) {
      const Predicted wanted = PredictAll(RecipeOf(formula), 2001, level);
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(saved | 0x8040 | 0x6000);  // flush to zero, denormals are zero, round towards zero
      const Predicted found = PredictAll(RecipeOf(formula), 2001, level);
      _mm_setcsr(saved);
      EXPECT_EQ(found, wanted);
    }
  }
}
#endif

// A wrong hint, and a state that no optimizer has made, cost bytes and never a bit.
TEST(AdamReplayTest, AnyPredictionIsTheBaseOfADelta) {
  const Optimizer optimizer;
  const OptimizerState before = TrainedBy(optimizer);
  const StateBytes from(before), to(optimizer.Next(before, /*is_bf16=*/false, 99));
  Bytes noise = RandomBytes(from.square.size(), 7);
  size_t bytes[3] = {};
  int k = 0;
  for (const double beta2 : {0.95, 0.99, 0.5}) {
    AdamStep step = optimizer.step;
    step.beta2 = beta2;
    const AdamRecipe recipe = FitAdam(step, from.spans(), to.spans());
    Bytes predicted(from.square.size());
    PredictSquare(recipe, from.moment, to.moment, from.square, predicted);
    bytes[k++] = testing::EncodeAndCheck(to.square, DType::kF32, &predicted).frame.size();
    testing::EncodeAndCheck(noise, DType::kF32, &predicted);
  }
  EXPECT_LT(4 * bytes[0], bytes[1]);
  EXPECT_LT(bytes[1], bytes[2]);
}

}  // namespace

}  // namespace varve::internal
