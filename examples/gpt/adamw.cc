// SPDX-License-Identifier: Apache-2.0
#include "gpt/adamw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>

#include "gpt/parallel.h"

namespace gpt {
namespace {

constexpr int64_t kElementBlock = 16'384;

}  // namespace

uint16_t RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet, payload's top
  const uint32_t odd = bits >> 16 & 1;
  return static_cast<uint16_t>((bits + 0x7fff + odd) >> 16);
}

float WidenBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

AdamW::AdamW(Range of) : slice(of), exp_avg(of.size()), exp_avg_sq(of.size()) {}

void AdamW::Step(const AdamWConfig& config, const std::vector<Param>& params,
                 std::span<float> values, std::span<const float> grads, float grad_scale, float lr,
                 int64_t step) {
  const double t = static_cast<double>(step);
  const auto step_size = static_cast<float>(double{lr} / (1 - std::pow(double{config.beta1}, t)));
  const auto sqrt_bias2 = static_cast<float>(std::sqrt(1 - std::pow(double{config.beta2}, t)));
  const auto update = [&](int64_t i, float kept) {
    const float g = grads[i] * grad_scale;
    exp_avg[i] = config.beta1 * exp_avg[i] + (1 - config.beta1) * g;
    exp_avg_sq[i] = config.beta2 * exp_avg_sq[i] + (1 - config.beta2) * g * g;
    const float denominator = std::sqrt(exp_avg_sq[i]) / sqrt_bias2 + config.epsilon;
    values[i] = kept * values[i] - step_size * (exp_avg[i] / denominator);
  };
  for (const Param& param : params) {
    const double decay = Decays(param) ? config.weight_decay : 0;
    const auto kept = static_cast<float>(1 - double{lr} * decay);
    const Range here = Intersect(slice, {param.offset, param.offset + param.size});
    const int64_t first = here.begin - slice.begin;
    ParallelBlocks(here.size(), kElementBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) update(first + i, kept);
    });
  }
}

double SquareSum(std::span<const float> values) {
  const int64_t size = static_cast<int64_t>(values.size());
  std::vector<double> sums((size + kElementBlock - 1) / kElementBlock);
  ParallelBlocks(size, kElementBlock, [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += double{values[i]} * values[i];
    sums[begin / kElementBlock] = sum;
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

float ClipScale(float norm, float max_norm) { return norm > max_norm ? max_norm / norm : 1.0f; }

double LrSchedule::At(int64_t step) const {
  if (step <= warmup_iters) {
    return max_lr * static_cast<double>(step) / static_cast<double>(warmup_iters);
  }
  if (step >= decay_iters) return min_lr;
  const double done =
      static_cast<double>(step - warmup_iters) / static_cast<double>(decay_iters - warmup_iters);
  return min_lr + (max_lr - min_lr) * (1 + std::cos(std::numbers::pi * done)) / 2;
}

}  // namespace gpt
