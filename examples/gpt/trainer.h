// SPDX-License-Identifier: Apache-2.0
//
// The training's state and its step: draw a batch, forward, backward, clip, update. It describes
// its state to varve and knows nothing about stores.
//
//   Trainer trainer(options, text);
//   ... load into *trainer.state(), then trainer.Resume() ...
//   trainer.ForwardBackward(batch_size);   // while a save may still read the state
//   StepReport report = trainer.Update();  // what a save reads must have been copied
//
// With several ranks each has a trainer of its part. All make the same calls, and all report the
// same.
//
// Thread rule: one thread at a time. Both halves of a step use all threads of the calling TBB
// arena.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
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
  bool tells_step = true;  // what the optimizer did (TrainingState::optimizer_step)
};

// kInvalidArgument when the model cannot be built, or not on these ranks, or the text is too short
// for a sequence.
varve::Status ValidateOptions(const TrainerOptions& options, const std::string& text,
                              const Topology& topology = {});

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
  // Initial weights are drawn from the seed, and do not depend on the ranks. Precondition:
  // ValidateOptions. `ranks` must outlive the trainer. Without ranks it is alone.
  Trainer(const TrainerOptions& options, std::string text, Ranks* ranks = nullptr);

  // The gradient of the next `batch_size` samples, which the data parallel ranks share equally.
  // Reads the tensors of the state, changes none.
  void ForwardBackward(int batch_size);
  // The step of the optimizer. All of the state is up to date then.
  StepReport Update();

  // The error between the ranks, if there was one. The trainer cannot be used after it.
  const varve::Status& status() const { return ranks_->status(); }

  // Everything of this rank that must be saved to continue bit for bit. Its tensors live as long as
  // the trainer.
  varve::TrainingState* state() { return &state_; }
  // Returns which elements of the whole tensor a tensor of the state has. nullptr = there is no
  // such tensor here.
  const TensorShard* ShardOf(std::string_view name) const;
  int64_t step() const { return state_.trainer.global_step; }
  // Returns what a save takes of the state.
  varve::TrainingState StateToSave() const;

  // Call it after something was loaded into the state. kInvalidArgument names what is malformed, or
  // differs from this trainer's own schedule or data. The trainer cannot be used then. A state
  // without a schedule, such as an imported one, gets this trainer's.
  struct Loaded {
    bool optimizer = true;  // else the masters are made from the weights
    bool generator = true;  // Otherwise a new one starts, from what the run has consumed
  };
  varve::Status Resume(const Loaded& loaded);

 private:
  std::span<float> Values();
  std::span<float> SliceOf(std::span<float> all) {
    return all.subspan(slice_.begin, slice_.size());
  }
  bool AdoptForeignState();
  void InitWeights();
  std::vector<float> DrawWhole(const Param& param);
  void ListTensors();
  void NameMasters(varve::TrainingState* state) const;
  void AddTensor(const std::string& prefix, const Param& param, varve::DType dtype, void* data,
                 Range flat, varve::TensorRole role);
  float GradNorm();
  std::vector<float> DrawDropout();
  std::shared_ptr<const varve::OptimizerStep> MakeHint(float lr, float scale) const;
  void ShareUpdate();
  // Only for bf16: makes new weights from the masters, and the model's fp32 copy of the weights.
  void RoundMasters();
  void UpdateModel();

  const TrainerOptions options_;
  const std::string text_;
  Ranks alone_;
  Ranks* const ranks_;
  const std::vector<Param> params_;
  Model<float> model_;
  const Range slice_;         // of the flat array: what this rank's optimizer changes
  AdamW adamw_;               // of the slice
  Buffer<float> master_;      // of the slice. Used only for bf16, like the weights
  Buffer<uint16_t> weights_;  // RoundToBf16 of the masters of all slices
  std::mt19937_64 rng_;       // of initial weights, then of dropout
  varve::TrainingState state_;
  std::vector<TensorShard> shards_;  // of state_.tensors

  // The last ForwardBackward.
  float loss_ = 0;
  int batch_size_ = 0;
};

}  // namespace gpt
