// SPDX-License-Identifier: Apache-2.0
#include "gpt/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace gpt {
namespace {

TEST(Bf16Test, RoundsToNearestEven) {
  const auto round = [](uint32_t bits) { return RoundToBf16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(round(0x3f800000), 0x3f80);  // exact
  EXPECT_EQ(round(0x3f807fff), 0x3f80);  // just below half: down
  EXPECT_EQ(round(0x3f808000), 0x3f80);  // half: to the even one below
  EXPECT_EQ(round(0x3f808001), 0x3f81);  // just above half: up
  EXPECT_EQ(round(0x3f818000), 0x3f82);  // half: to the even one above
  EXPECT_EQ(round(0x3fffffff), 0x4000);  // carries into the exponent
  EXPECT_EQ(round(0x80000000), 0x8000);  // negative zero
  EXPECT_EQ(round(0x7f7fffff), 0x7f80);  // the largest float becomes infinity
  EXPECT_EQ(round(0x7f800000), 0x7f80);
  EXPECT_TRUE(std::isnan(WidenBf16(round(0x7f800001))));  // the payload is in the lost half only
}

TEST(Bf16Test, EveryValueSurvives) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = WidenBf16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(RoundToBf16(value), bits);
  }
}

// The update as the AdamW paper writes it, in double precision, on a matrix and on a vector.
TEST(AdamWTest, MatchesThePaper) {
  const std::vector<Param> params = {{.name = "matrix", .shape = {2, 2}, .offset = 0, .size = 4},
                                     {.name = "vector", .shape = {3}, .offset = 4, .size = 3}};
  const AdamWConfig config;
  AdamW adamw(7);
  std::vector<float> values(7);
  std::vector<double> expected(7), m(7), v(7);
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 7; ++i) expected[i] = values[i] = normal(rng);

  const float lr = 0.01f, scale = 0.5f;
  for (int step = 1; step <= 5; ++step) {
    std::vector<float> grads(7);
    for (float& g : grads) g = normal(rng);
    adamw.Step(config, params, values, grads, scale, lr, step);
    for (int i = 0; i < 7; ++i) {
      const double g = double{grads[i]} * scale;
      m[i] = config.beta1 * m[i] + (1 - double{config.beta1}) * g;
      v[i] = config.beta2 * v[i] + (1 - double{config.beta2}) * g * g;
      const double m_hat = m[i] / (1 - std::pow(config.beta1, step));
      const double v_hat = v[i] / (1 - std::pow(config.beta2, step));
      const double decay = i < 4 ? config.weight_decay : 0;
      expected[i] -= lr * (m_hat / (std::sqrt(v_hat) + config.epsilon) + decay * expected[i]);
      EXPECT_NEAR(values[i], expected[i], 1e-6);  // float keeps 7 digits
    }
  }
}

TEST(ClipTest, ScalesOnlyLargeGradients) {
  const std::vector<float> grads = {3, 4};
  EXPECT_DOUBLE_EQ(SquareSum(grads), 25);
  EXPECT_FLOAT_EQ(ClipScale(5, 1), 0.2f);
  EXPECT_FLOAT_EQ(ClipScale(0.5f, 1), 1);
  EXPECT_FLOAT_EQ(ClipScale(0, 1), 1);
}

TEST(ClipTest, NormOfManyBlocks) {
  const std::vector<float> grads(100'000, 0.5f);
  EXPECT_DOUBLE_EQ(SquareSum(grads), 0.25 * 100'000);
}

TEST(LrScheduleTest, WarmsUpThenDecays) {
  const LrSchedule schedule = {.max_lr = 1, .min_lr = 0.1, .warmup_iters = 4, .decay_iters = 14};
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.25);
  EXPECT_DOUBLE_EQ(schedule.At(4), 1);
  EXPECT_DOUBLE_EQ(schedule.At(9), 0.55);  // half-way down
  EXPECT_DOUBLE_EQ(schedule.At(14), 0.1);
  EXPECT_DOUBLE_EQ(schedule.At(1000), 0.1);
}

TEST(LrScheduleTest, NoWarmUp) {
  const LrSchedule schedule = {.max_lr = 1, .min_lr = 0, .warmup_iters = 0, .decay_iters = 0};
  EXPECT_DOUBLE_EQ(schedule.At(1), 0);
}

}  // namespace
}  // namespace gpt
