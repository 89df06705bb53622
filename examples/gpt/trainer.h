// SPDX-License-Identifier: Apache-2.0
//
// The training's state and its one step: draw a batch, forward, backward; clip, update. Describes
// its state to varve and knows nothing of stores.
//
//   Trainer trainer(options, text);
//   ... load into *trainer.state(), then trainer.Resume() ...
//   trainer.ForwardBackward(batch_size);   // while a save may still read the state
//   StepReport report = trainer.Update();  // what a save reads must have been copied
//
// Thread rule: one thread at a time; both halves of a step use all threads of the calling TBB
// arena.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpt/adamw.h"
#include "gpt/model.h"
#include "varve/result.h"
#include "varve/training_state.h"

namespace gpt {

enum class Precision {
  kBf16,  // bf16 weights that the model computes with, and fp32 masters that are updated
  kFp32,  // fp32 weights that are both
};

struct TrainerOptions {
  ModelConfig model;
  Precision precision = Precision::kBf16;
  AdamWConfig adamw;
  LrSchedule schedule;
  float dropout = 0.1f;  // of the embeddings
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
  int64_t first_sample = 0;  // of the batch, which are consecutive
  int64_t last_sample = 0;
};

class Trainer {
 public:
  // Initial weights are drawn from the seed. Precondition: ValidateOptions.
  Trainer(const TrainerOptions& options, std::string text);

  // The gradient of the next `batch_size` samples. Reads the tensors of the state, changes none.
  void ForwardBackward(int batch_size);
  // The step of the optimizer. All of the state is up to date then.
  StepReport Update();

  // All that must be saved to go on bit for bit. Its tensors live as long as the trainer.
  varve::TrainingState* state() { return &state_; }
  int64_t step() const { return state_.trainer.global_step; }
  // Call after something was loaded into the state. kInvalidArgument names what differs from this
  // trainer's own schedule or data, or is malformed; the trainer is of no use then.
  varve::Status Resume();

 private:
  std::span<float> Values();
  void InitWeights();
  void ListTensors();
  std::vector<float> DrawDropout(int64_t size);
  // Only for bf16: new weights from the masters, and the model's fp32 copy of the weights.
  void RoundMasters();
  void UpdateModel();

  const TrainerOptions options_;
  const std::string text_;
  const std::vector<Param> params_;
  Model<float> model_;
  AdamW adamw_;
  Buffer<float> master_;      // only for bf16, as the weights
  Buffer<uint16_t> weights_;  // RoundToBf16 of master_
  std::mt19937_64 rng_;       // of initial weights, then of dropout
  varve::TrainingState state_;

  // The last ForwardBackward.
  float loss_ = 0;
  int batch_size_ = 0;
};

}  // namespace gpt
