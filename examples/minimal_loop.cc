// SPDX-License-Identifier: Apache-2.0
//
// The smallest trainer that saves and resumes. It makes four calls of varve: the lines marked (1),
// (2) and (3), and Finish at the end.
//
//   minimal_loop 60     trains to step 60, saves every 10 steps and at the last one, in `ckpt`
//   minimal_loop 100    goes on at step 61
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "varve/varve.h"

// Moves the weights to 1, 2, 3 ... by gradient descent with momentum, to the step `last`.
varve::Status Train(int64_t last) {
  constexpr int64_t kSize = 1000;
  std::vector<float> weights(kSize), momentum(kSize), grads(kSize);
  varve::TrainingState state;
  state.tensors = {
      {{.name = "model.weights", .shape = {kSize}, .role = varve::TensorRole::kParameter},
       weights.data()},
      {{.name = "momentum.weights", .shape = {kSize}, .role = varve::TensorRole::kOptimizer},
       momentum.data()}};
  const varve::CheckpointFlags flags = {.save = "ckpt", .save_interval = 10, .load = "ckpt"};

  VARVE_ASSIGN_OR_RETURN(auto hooks, varve::TrainerHooks::Start(flags, &state));  // (1)
  for (int64_t step = state.trainer.global_step + 1; step <= last; ++step) {
    for (int64_t i = 0; i < kSize; ++i) grads[i] = weights[i] - static_cast<float>(i + 1);
    VARVE_RETURN_IF_ERROR(hooks->BeforeOptimizerStep());  // (2)
    for (int64_t i = 0; i < kSize; ++i) {
      momentum[i] = 0.9f * momentum[i] + grads[i];
      weights[i] -= 0.01f * momentum[i];
    }
    state.trainer.global_step = step;
    VARVE_ASSIGN_OR_RETURN(const bool stop, hooks->AfterStep(state, step == last));  // (3)
    if (stop) break;
  }
  std::printf("step %ld: the last weight is %a\n", state.trainer.global_step,
              static_cast<double>(weights.back()));
  return hooks->Finish();
}

int main(int argc, char** argv) {
  const varve::Status status = Train(argc > 1 ? std::atoll(argv[1]) : 100);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
