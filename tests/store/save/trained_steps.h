// SPDX-License-Identifier: Apache-2.0
//
// Steps of an optimizer that a test saves in a run of their own, each with the hint. So each is
// predicted from the step before it. Each step also has noise that nothing is predicted from. When
// steps are dropped, a file that holds both is written anew for the chunks that are still needed.
// Saves change nothing here. The rest is for one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tests/store/test_tensor.h"
#include "varve/store.h"

namespace varve::internal::testing {

// Begin to Commit.
Status SaveTestTensors(Store* store, uint64_t step, const std::vector<TestTensor>& tensors,
                       const SaveOptions& options = {});
// Whether the store has a chunk that is predicted from a step of an optimizer.
Result<bool> HasReplays(const Store& store);

class TrainedSteps {
 public:
  // `elements` of each of three FP32 tensors. There is a rounded copy, too.
  TrainedSteps(size_t elements, size_t num_steps);

  CheckpointId IdOf(size_t i) const;
  const std::vector<TestTensor>& TensorsOf(size_t i) const { return steps_[i].tensors; }
  Status Save(Store* store, size_t i, const SaveOptions& options = {}) const;

  // The step that follows step i - 1 with other gradients, to replace step i.
  std::vector<TestTensor> OtherTensorsOf(size_t i) const { return steps_[i].others; }
  Status Replace(Store* store, size_t i) const;

 private:
  struct Step {
    std::vector<TestTensor> tensors, others;
    std::shared_ptr<const OptimizerStep> hint;
  };
  std::vector<Step> steps_;
};

}  // namespace varve::internal::testing
