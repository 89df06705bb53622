// SPDX-License-Identifier: Apache-2.0
//
// A trainer small enough for tests, and its whole state as bytes.
#pragma once

#include <string>
#include <vector>

#include "gpt/trainer.h"

namespace gpt {

// Rows and channels beyond one block of the parallel loops, so that several threads share the work.
inline TrainerOptions SmallOptions() {
  TrainerOptions options;
  options.model = {.num_layers = 2, .hidden_size = 80, .num_heads = 4, .seq_length = 24};
  options.schedule = {.max_lr = 1e-2, .min_lr = 1e-3, .warmup_iters = 3, .decay_iters = 20};
  return options;
}

inline std::string SmallText() {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * i) + " of the text\n";
  return text;
}

// Name and bytes of each tensor, one string a tensor.
inline std::vector<std::string> StateBytes(Trainer* trainer) {
  std::vector<std::string> all;
  for (const varve::StateTensor& tensor : trainer->state()->tensors) {
    const uint64_t size = varve::NumBytes(tensor.dtype, tensor.shape).value();
    all.push_back(tensor.name + " " + std::string(static_cast<const char*>(tensor.data), size));
  }
  return all;
}

inline StepReport Step(Trainer* trainer, int batch_size = 4) {
  trainer->ForwardBackward(batch_size);
  return trainer->Update();
}

// The loss of each step.
inline std::vector<float> TrainTo(int64_t step, Trainer* trainer) {
  std::vector<float> losses;
  while (trainer->step() < step) losses.push_back(Step(trainer).loss);
  return losses;
}

}  // namespace gpt
