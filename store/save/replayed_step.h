// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a save that one step of an optimizer has changed together (optimizer_step.h). The
// pipeline takes chunk i of all three side by side, because each is predicted from the others
// (replayed_chunk.h). Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "codec/predict/adam_replay.h"
#include "store/save/save_tensor.h"
#include "varve/optimizer_step.h"

namespace varve::internal {

struct ReplayedStep {
  static constexpr size_t kNumTensors = 3;

  AdamStep step;
  std::array<SaveTensor*, kNumTensors> tensors{};  // the first moment, the second, the weight
  bool is_together = false;  // for the pipeline: its chunks go through side by side
};

// Marks the tensors of each parameter of the hint (SaveTensor::Extra::step). What does not fit the
// hint is left out: other dtypes, strides, shapes, names that are not there. Each tensor belongs to
// one parameter.
std::vector<std::unique_ptr<ReplayedStep>> LinkSteps(const OptimizerStep& step,
                                                     SaveTensors* tensors);

}  // namespace varve::internal
