// SPDX-License-Identifier: Apache-2.0
//
// The training loop's state and its one step: draw a batch, forward, backward, clip, update. Knows
// what must be saved to go on bit for bit, not how it is stored (checkpoint.h does).
//
// Thread rule: one thread at a time; Step uses all threads of the calling TBB arena.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gpt/adamw.h"
#include "gpt/model.h"
#include "varve/result.h"
#include "varve/tensor.h"
#include "varve/trainer_state.h"

namespace gpt {

struct TrainerOptions {
  ModelConfig model;
  AdamWConfig adamw;
  LrSchedule schedule;
  int micro_batch_size = 4;
  float clip_grad = 1.0f;
  uint64_t seed = 1234;
};

// kInvalidArgument when the model cannot be built or the text is too short for a sequence.
varve::Status ValidateOptions(const TrainerOptions& options, const std::string& text);

struct StepReport {
  int64_t step = 0;  // optimizer steps done
  float loss = 0;    // of the batch, before the update
  float grad_norm = 0;
  double lr = 0;
};

// One tensor of the training state, in the trainer's own memory.
struct StateTensor {
  std::string name;
  varve::DType dtype = varve::DType::kF32;
  std::vector<int64_t> shape;
  void* data = nullptr;
  std::string derived_from{};  // see varve::TensorView
  bool tied = false;           // shares its storage with an earlier tensor
};

class Trainer {
 public:
  // Initial weights are drawn from the seed. Precondition: ValidateOptions.
  Trainer(const TrainerOptions& options, std::string text);

  StepReport Step();
  int64_t step() const { return step_; }
  float last_loss() const { return last_loss_; }

  // Every tensor of the state. The memory lives as long as the trainer and changes only in Step.
  std::vector<StateTensor> Tensors();
  // All the rest of the state.
  varve::TrainerState State() const;
  // Takes over a saved state after the memory of Tensors() was filled. kInvalidArgument names what
  // differs from this trainer's own schedule or text, or is malformed; nothing is changed then.
  varve::Status Restore(const varve::TrainerState& state);

 private:
  void InitWeights();
  // The model computes in fp32 with the values of the bf16 weights.
  void UpdateModel();

  const TrainerOptions options_;
  const std::string text_;
  const std::vector<Param> params_;
  Model<float> model_;
  AdamW adamw_;
  std::mt19937_64 rng_;
  int64_t step_ = 0;
  int64_t consumed_samples_ = 0;
  float last_loss_ = 0;
};

}  // namespace gpt
