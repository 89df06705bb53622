// SPDX-License-Identifier: Apache-2.0
//
// AdamW in fp32, with bf16, gradient clipping and the learning-rate schedule.
//
// Thread rule: one thread at a time. Step uses all threads of the calling TBB arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpt/buffer.h"
#include "gpt/params.h"

namespace gpt {

// bf16 is the upper half of a float. This rounds to nearest, ties to even. NaN stays NaN.
uint16_t RoundToBf16(float value);
float WidenBf16(uint16_t bits);

struct AdamWConfig {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  // of matrices only
};

inline bool Decays(const Param& param) { return param.shape.size() >= 2; }

// The moments of a slice of the flat array that ListParams describes.
struct AdamW {
  explicit AdamW(Range of);
  // Updates all elements.
  explicit AdamW(int64_t size) : AdamW(Range{0, size}) {}

  // As torch.optim.AdamW does it. Updates `values`, which are the parameters or their masters.
  // `values` and the gradient have the elements of the slice. `step` counts from 1. The gradient is
  // multiplied by `grad_scale` first.
  void Step(const AdamWConfig& config, const std::vector<Param>& params, std::span<float> values,
            std::span<const float> grads, float grad_scale, float lr, int64_t step);

  Range slice;
  Buffer<float> exp_avg, exp_avg_sq;
};

// The square of the Euclidean norm.
double SquareSum(std::span<const float> values);
// The factor that brings a gradient of this norm to at most `max_norm`.
float ClipScale(float norm, float max_norm);

// Linear warm-up from 0, then half a cosine from max_lr down to min_lr, then min_lr.
struct LrSchedule {
  double max_lr = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup_iters = 10;
  int64_t decay_iters = 100;

  // `step` counts from 1.
  double At(int64_t step) const;
  bool operator==(const LrSchedule&) const = default;
};

}  // namespace gpt
