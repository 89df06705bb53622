// SPDX-License-Identifier: Apache-2.0
//
// GPT-2: token and position embeddings, pre-LN blocks of causal attention and a GELU MLP, a final
// LN, and a head tied to the token embedding. Words are bytes.
//
//   Model<float> model(config);
//   ... fill model.params() ...
//   float loss = model.Forward(inputs, targets, batch_size);
//   model.Backward();  // model.grads() is the gradient of loss
//
// With several ranks each holds its part. Each tensor parallel rank has some of the heads, of the
// MLP's columns and of the words, and the ranks add up their results. Each stage of a pipeline has
// some of the layers. The first stage also has the embeddings, and the last the head. The batch
// goes through the stages as a whole, so this pipeline saves memory, not time.
//
// Thread rule: one thread at a time. The layers inside use all threads of the calling TBB arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpt/buffer.h"
#include "gpt/params.h"
#include "gpt/ranks.h"

namespace gpt {

// Pointers to the tensors of one flat array: the parameters, or their gradients. H is the rank's
// part of C, and W its part of V. Without tensor parallel ranks the parts are the whole.
template <typename Real>
struct BlockTensors {
  Real *ln_1_weight, *ln_1_bias;      // (C), (C)
  Real *c_attn_weight, *c_attn_bias;  // (3H, C), (3H)
  Real *attn_weight, *attn_bias;      // (C, H), (C): attn.c_proj
  Real *ln_2_weight, *ln_2_bias;      // (C), (C)
  Real *c_fc_weight, *c_fc_bias;      // (4H, C), (4H)
  Real *mlp_weight, *mlp_bias;        // (C, 4H), (C): mlp.c_proj
};
// Pointers are null for tensors of another stage.
template <typename Real>
struct ModelTensors {
  Real *wte, *wpe;                         // (W, C), (T, C)
  std::vector<BlockTensors<Real>> blocks;  // of the stage
  Real *ln_f_weight, *ln_f_bias;           // (C), (C)
};

// What the forward pass of one block keeps for its backward pass.
template <typename Real>
struct BlockActivations {
  Buffer<Real> ln_1, ln_1_mean, ln_1_rstd;  // (N, C), (N), (N)
  Buffer<Real> qkv;                         // (N, 3H)
  Buffer<Real> att;                         // (B, heads of the rank, T, T)
  Buffer<Real> heads;                       // (N, H): attention before c_proj
  Buffer<Real> middle;                      // (N, C): residual stream after attention
  Buffer<Real> ln_2, ln_2_mean, ln_2_rstd;  // (N, C), (N), (N)
  Buffer<Real> fc, gelu;                    // (N, 4H), (N, 4H)
  Buffer<Real> out;                         // (N, C): residual stream after the MLP
};

template <typename Real>
class Model {
 public:
  // Without `ranks` the model is whole. They must outlive the model.
  explicit Model(const ModelConfig& config, Ranks* ranks = nullptr);

  const ModelConfig& config() const { return config_; }
  // The parameters of this rank, in the order of ListParams.
  std::span<Real> params() { return params_; }
  std::span<Real> grads() { return grads_; }

  // Returns the mean cross entropy over all tokens, on the last stage only. `inputs` and `targets`
  // hold `batch_size` sequences of config.seq_length tokens, (B, T). The embeddings are multiplied
  // with `dropout`, (N, C), unless it is empty.
  Real Forward(std::span<const uint8_t> inputs, std::span<const uint8_t> targets, int batch_size,
               std::span<const Real> dropout = {});
  // Fills grads() for the last Forward.
  void Backward();

 private:
  void Reserve(int batch_size);
  void EmbedForward();
  void EmbedBackward();
  Real HeadForward();
  void HeadBackward();
  void BlockForward(const BlockTensors<Real>& p, const Real* inp, BlockActivations<Real>* a);
  void BlockBackward(const BlockTensors<Real>& p, const BlockTensors<Real>& d, const Real* inp,
                     const BlockActivations<Real>& a);
  // A zeroed gradient of `size` elements in `buffer`.
  static Real* Zeroed(Buffer<Real>* buffer, int64_t size);

  // The input of the stage's head or of the next stage, (N, C).
  const Buffer<Real>& last() const { return blocks_.empty() ? embedded_ : blocks_.back().out; }
  const Position& at() const { return ranks_->position(); }
  int64_t num_heads() const { return config_.num_heads / at().topology.tp; }
  // When the ranks' results are added up, only one of them may add this bias.
  const Real* OnceOverTp(const Real* bias) const { return at().tp_rank == 0 ? bias : nullptr; }

  const ModelConfig config_;
  Ranks alone_;
  Ranks* const ranks_;
  const int64_t H_;    // C / tp
  const Range words_;  // of the rank
  Buffer<Real> params_;
  Buffer<Real> grads_;
  ModelTensors<Real> p_;  // into params_
  ModelTensors<Real> d_;  // into grads_

  // The last Forward.
  int B_ = 0;
  std::vector<uint8_t> inputs_, targets_;  // (N)
  Buffer<Real> dropout_;                   // (N, C) or empty
  Buffer<Real> embedded_;                  // (N, C), or what the stage before has handed on
  std::vector<BlockActivations<Real>> blocks_;
  Buffer<Real> ln_f_, ln_f_mean_, ln_f_rstd_;  // (N, C), (N), (N)
  Buffer<Real> part_logits_;                   // (N, W)
  Buffer<Real> logits_, probs_, losses_;       // (N, V), (N, V), (N)

  // Scratch memory for a branch before it joins the residual stream, and for gradients: of the
  // stream, and of the wide, (N, 4H), and narrow, (N, C), tensors on the way.
  Buffer<Real> branch_;        // (N, C)
  Buffer<Real> dresidual_;     // (N, C)
  Buffer<Real> dwide_[2];      // (N, 4H)
  Buffer<Real> dnarrow_;       // (N, C)
  Buffer<Real> dlogits_;       // (N, V)
  Buffer<Real> dpart_logits_;  // (N, W)
};

}  // namespace gpt
