// SPDX-License-Identifier: Apache-2.0
//
// Compares hand-written gradients with central differences, in double precision.
//
// A central difference with step h = 1e-5 errs by about h^2 = 1e-10 from the third derivative and
// by 1e-16 / h = 1e-11 from rounding, relative to values near 1. kTolerance leaves a factor of a
// thousand for the sizes that occur. A wrong term in a backward pass gives errors of 1e-2 and more.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace gpt {

inline constexpr double kDifferenceStep = 1e-5;
inline constexpr double kTolerance = 1e-7;

inline std::vector<double> RandomValues(int64_t size, std::mt19937_64* rng) {
  std::normal_distribution<double> normal;
  std::vector<double> values(size);
  std::generate(values.begin(), values.end(), [&] { return normal(*rng); });
  return values;
}

inline double WeightedSum(const std::vector<double>& values, const std::vector<double>& weights) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

// Moves each of `values` both ways and expects the change of `loss` that `gradient` predicts.
inline void ExpectGradient(const std::string& what, std::span<double> values,
                           std::span<const double> gradient, const std::function<double()>& loss) {
  ASSERT_EQ(values.size(), gradient.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    const double original = values[i];
    values[i] = original + kDifferenceStep;
    const double above = loss();
    values[i] = original - kDifferenceStep;
    const double below = loss();
    values[i] = original;
    const double expected = (above - below) / (2 * kDifferenceStep);
    EXPECT_NEAR(gradient[i], expected, kTolerance * std::max(1.0, std::abs(expected)))
        << what << "[" << i << "]";
  }
}

}  // namespace gpt
