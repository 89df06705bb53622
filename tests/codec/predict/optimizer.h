// SPDX-License-Identifier: Apache-2.0
//
// An optimizer that rounds as its formulas say, written apart from the code under test. Whoever
// includes it is compiled with -ffp-contract=off.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "codec/predict/adam_replay.h"
#include "tests/codec/made_values.h"

namespace varve::internal::testing {

inline constexpr size_t kElements = 5003;

struct OptimizerState {
  std::vector<float> moment, square, weight;
};
struct StateBytes {
  explicit StateBytes(const OptimizerState& state)
      : moment(ToBytes(state.moment)),
        square(ToBytes(state.square)),
        weight(ToBytes(state.weight)) {}
  AdamState spans() const { return {moment, square, weight}; }
  Bytes moment, square, weight;
};

inline float RoundedToBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  bits = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
  return std::bit_cast<float>(bits);
}

struct Optimizer {
  AdamStep step{.learning_rate = 3e-4,
                .beta1 = 0.9,
                .beta2 = 0.95,
                .eps = 1e-8,
                .weight_decay = 0.1,
                .number = 12,
                .gradient_scale = 0.7};
  MomentFormula moment{};
  SquareFormula square{};
  WeightFormula weight{};

  float NextMoment(float m, float g) const {
    const auto b = static_cast<float>(step.beta1), r = static_cast<float>(1 - step.beta1);
    switch (moment) {
      case MomentFormula::kSumFusedGradient:
        return std::fma(r, g, b * m);
      case MomentFormula::kLerpFused:
        return std::fma(r, g - m, m);
      case MomentFormula::kLerp: {
        const float distance = g - m;
        const float product = r * distance;
        return m + product;
      }
      case MomentFormula::kSum: {
        const float kept = b * m, added = r * g;
        return kept + added;
      }
      default:
        return std::fma(b, m, r * g);
    }
  }
  float NextSquare(float v, float g) const {
    const auto b = static_cast<float>(step.beta2), r = static_cast<float>(1 - step.beta2);
    const float kept = b * v, g2 = g * g, part = r * g;
    const float of_part = part * g, of_square = r * g2;
    switch (square) {
      case SquareFormula::kFused:
        return std::fma(part, g, kept);
      case SquareFormula::kProduct:
        return kept + of_part;
      case SquareFormula::kFusedSquare:
        return std::fma(r, g2, kept);
      case SquareFormula::kSquare:
        return kept + of_square;
      default:
        return std::fma(b, v, of_square);
    }
  }
  float NextWeight(float w, float m, float v) const {
    const auto t = static_cast<double>(step.number);
    const auto size = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, t)));
    const auto bias = static_cast<float>(std::sqrt(1 - std::pow(step.beta2, t)));
    const auto decay = static_cast<float>(1 - step.learning_rate * step.weight_decay);
    const float root = std::sqrt(v) / bias;
    const float divisor = root + static_cast<float>(step.eps);
    const float kept = decay * w, scaled = size * m, quotient = m / divisor;
    const float of_scaled = scaled / divisor, of_quotient = size * quotient;
    switch (weight) {
      case WeightFormula::kProduct:
        return kept - of_scaled;
      case WeightFormula::kQuotient:
        return kept - of_quotient;
      default:
        return std::fma(-size, quotient, kept);
    }
  }

  // Each element of each tensor once, with gradients of some thousandths.
  OptimizerState Next(const OptimizerState& before, bool is_bf16, uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.003f);
    OptimizerState after = before;
    for (size_t i = 0; i < before.moment.size(); ++i) {
      const float raw = is_bf16 ? RoundedToBf16(normal(random)) : normal(random);
      const float g = raw * static_cast<float>(step.gradient_scale);
      after.moment[i] = NextMoment(before.moment[i], g);
      after.square[i] = NextSquare(before.square[i], g);
      after.weight[i] = NextWeight(before.weight[i], after.moment[i], after.square[i]);
    }
    return after;
  }
};

// A state after some steps of training.
inline OptimizerState TrainedBy(const Optimizer& optimizer, size_t elements = kElements) {
  OptimizerState state = {std::vector<float>(elements), std::vector<float>(elements),
                          Weights(elements, 1)};
  Optimizer earlier = optimizer;
  for (uint64_t number = 1; number < optimizer.step.number; ++number) {
    earlier.step.number = number;
    state = earlier.Next(state, /*is_bf16=*/false, number);
  }
  return state;
}

}  // namespace varve::internal::testing
