// SPDX-License-Identifier: Apache-2.0
//
// Between two consecutive steps of Adam or AdamW, the state after the step follows from the state
// before it and the gradient:
//
//   m' = b1 m + (1 - b1) g          v' = b2 v + (1 - b2) g g
//   w' = (1 - lr wd) w - lr / (1 - b1^t) * m' / (sqrt(v') / sqrt(1 - b2^t) + eps)
//
// (Kingma and Ba, arXiv 1412.6980; Loshchilov and Hutter, arXiv 1711.05101; torch.optim.AdamW.)
// The gradient is not in a checkpoint, but it is recovered from m and m'. So v' is predicted from
// v, m and m', and w' from w, m' and v'. If gradients are BF16, m' is predicted from m and g, and g
// takes less space than m'.
//
// A prediction is the base of an ordinary delta. A wrong one costs bytes, and never a bit of the
// state. Every level gives the same bytes. Functions are stateless.
//
//   const AdamRecipe recipe = FitAdam(step, before, after);   // from a sample of the chunk
//   PredictSquare(recipe, before.moment, after.moment, before.square, base);
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"

namespace varve::internal {

// What the trainer knows of a step.
struct AdamStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // decoupled, as in AdamW
  uint64_t number = 1;      // of this step. The first step is 1
  double gradient_scale =
      1;  // by which the gradient was multiplied before the step, as clipping does
};

// Optimizers round in different places. The letters stand for the constants of AdamRecipe. A "+"
// within fma() is one rounding with its product. These numbers are on disk: never renumber.
enum class MomentFormula : uint8_t {
  kSumFusedGradient = 0,  // fma(rest1, g, beta1 * m)
  kLerpFused = 1,         // fma(rest1, g - m, m)
  kLerp = 2,              // m + rest1 * (g - m)
  kSum = 3,               // beta1 * m + rest1 * g
  kSumFusedMoment = 4,    // fma(beta1, m, rest1 * g)
};
inline constexpr int kNumMomentFormulas = 5;
enum class SquareFormula : uint8_t {
  kFused = 0,        // fma(rest2 * g, g, beta2 * v)
  kProduct = 1,      // beta2 * v + (rest2 * g) * g
  kFusedSquare = 2,  // fma(rest2, g * g, beta2 * v)
  kSquare = 3,       // beta2 * v + rest2 * (g * g)
  kFusedDecay = 4,   // fma(beta2, v, rest2 * (g * g))
};
inline constexpr int kNumSquareFormulas = 5;
enum class WeightFormula : uint8_t {
  kProduct = 0,   // decay * w - (step_size * m) / d
  kQuotient = 1,  // decay * w - step_size * (m / d)
  kFused = 2,     // fma(-step_size, m / d, decay * w)
};
inline constexpr int kNumWeightFormulas = 3;

// The constants of a step as an optimizer of FP32 tensors has them, and its formulas.
struct AdamRecipe {
  float beta1 = 0, rest1 = 0;  // 1 - beta1
  float beta2 = 0, rest2 = 0;  // 1 - beta2
  float decay = 1;             // 1 - lr wd
  float step_size = 0;         // lr / (1 - b1^t)
  float sqrt_bias2 = 1;        // sqrt(1 - b2^t)
  float eps = 0;
  float gradient_scale = 1;
  bool has_bf16_gradient = false;  // before the scale
  MomentFormula moment{};
  SquareFormula square{};
  WeightFormula weight{};

  // In the order of a frame's header.
  static constexpr std::array<float AdamRecipe::*, 9> kConstants = {
      &AdamRecipe::beta1,      &AdamRecipe::rest1, &AdamRecipe::beta2,
      &AdamRecipe::rest2,      &AdamRecipe::decay, &AdamRecipe::step_size,
      &AdamRecipe::sqrt_bias2, &AdamRecipe::eps,   &AdamRecipe::gradient_scale};
  // False: a trainer said something that is no number. No frame has such a recipe.
  bool IsFinite() const {
    for (const auto constant : kConstants) {
      if (!std::isfinite(this->*constant)) return false;
    }
    return true;
  }
};

// FP32 elements of the same places. All spans have the same size.
struct AdamState {
  std::span<const std::byte> moment{};  // m, exp_avg
  std::span<const std::byte> square{};  // v, exp_avg_sq
  std::span<const std::byte> weight{};  // w, the master
};

// Finds the formulas that fit a sample of the state best, whether the weight decays, and whether
// the gradients are BF16.
AdamRecipe FitAdam(const AdamStep& step, const AdamState& before, const AdamState& after,
                   CpuLevel level = DetectCpu());

// All spans but `gradient` are FP32 and have the same size. `gradient` is BF16 and has half of it.
// Where a prediction is no number, or the recipe has no known formula, it is what was there before.
// A recovered gradient that is no number is 0x7FC0. `out` overlaps no input.
void PredictSquare(const AdamRecipe& recipe, std::span<const std::byte> moment_before,
                   std::span<const std::byte> moment, std::span<const std::byte> square_before,
                   std::span<std::byte> out, CpuLevel level = DetectCpu());
void PredictWeight(const AdamRecipe& recipe, std::span<const std::byte> moment,
                   std::span<const std::byte> square, std::span<const std::byte> weight_before,
                   std::span<std::byte> out, CpuLevel level = DetectCpu());
void RecoverGradient(const AdamRecipe& recipe, std::span<const std::byte> moment_before,
                     std::span<const std::byte> moment, std::span<std::byte> gradient,
                     CpuLevel level = DetectCpu());
void PredictMoment(const AdamRecipe& recipe, std::span<const std::byte> moment_before,
                   std::span<const std::byte> gradient, std::span<std::byte> out,
                   CpuLevel level = DetectCpu());

}  // namespace varve::internal
