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
// Thread rule: one thread at a time; the layers inside use all threads of the calling TBB arena.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpt/buffer.h"

namespace gpt {

inline constexpr int kVocabSize = 256;

struct ModelConfig {
  int num_layers = 6;
  int hidden_size = 256;
  int num_heads = 8;
  int seq_length = 128;
};

// Where one tensor lies in the flat array of all parameters.
struct Param {
  std::string name;  // as PyTorch names it, e.g. "transformer.h.0.attn.c_attn.weight"
  std::vector<int64_t> shape;
  int64_t offset = 0;
  int64_t size = 0;
};

// All parameters, in the order of their storage. The tied lm_head.weight is not among them.
std::vector<Param> ListParams(const ModelConfig& config);
// The storage of lm_head.weight.
inline constexpr std::string_view kTiedToHead = "transformer.wte.weight";

// Pointers to the tensors of one flat array: the parameters, or their gradients.
template <typename Real>
struct BlockTensors {
  Real *ln_1_weight, *ln_1_bias;      // (C), (C)
  Real *c_attn_weight, *c_attn_bias;  // (3C, C), (3C)
  Real *attn_weight, *attn_bias;      // (C, C), (C): attn.c_proj
  Real *ln_2_weight, *ln_2_bias;      // (C), (C)
  Real *c_fc_weight, *c_fc_bias;      // (4C, C), (4C)
  Real *mlp_weight, *mlp_bias;        // (C, 4C), (C): mlp.c_proj
};
template <typename Real>
struct ModelTensors {
  Real *wte, *wpe;  // (V, C), (T, C)
  std::vector<BlockTensors<Real>> blocks;
  Real *ln_f_weight, *ln_f_bias;  // (C), (C)
};

// What the forward pass of one block keeps for its backward pass.
template <typename Real>
struct BlockActivations {
  Buffer<Real> ln_1, ln_1_mean, ln_1_rstd;  // (N, C), (N), (N)
  Buffer<Real> qkv;                         // (N, 3C)
  Buffer<Real> att;                         // (B, NH, T, T)
  Buffer<Real> heads;                       // (N, C): attention before c_proj
  Buffer<Real> middle;                      // (N, C): residual stream after attention
  Buffer<Real> ln_2, ln_2_mean, ln_2_rstd;  // (N, C), (N), (N)
  Buffer<Real> fc, gelu;                    // (N, 4C), (N, 4C)
  Buffer<Real> out;                         // (N, C): residual stream after the MLP
};

template <typename Real>
class Model {
 public:
  explicit Model(const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  std::span<Real> params() { return params_; }
  std::span<const Real> grads() const { return grads_; }

  // The mean cross entropy over all tokens. `inputs` and `targets` hold `batch_size` sequences of
  // config.seq_length tokens, (B, T). The embeddings are multiplied with `dropout`, (N, C); empty:
  // with nothing.
  Real Forward(std::span<const uint8_t> inputs, std::span<const uint8_t> targets, int batch_size,
               std::span<const Real> dropout = {});
  // Fills grads() for the last Forward.
  void Backward();

 private:
  void Reserve(int batch_size);
  void BlockForward(const BlockTensors<Real>& p, const Real* inp, BlockActivations<Real>* a);
  void BlockBackward(const BlockTensors<Real>& p, const BlockTensors<Real>& d, const Real* inp,
                     const BlockActivations<Real>& a);
  // A zeroed gradient of `size` elements in `buffer`.
  static Real* Zeroed(Buffer<Real>* buffer, int64_t size);

  const ModelConfig config_;
  Buffer<Real> params_;
  Buffer<Real> grads_;
  ModelTensors<Real> p_;  // into params_
  ModelTensors<Real> d_;  // into grads_

  // The last Forward.
  int B_ = 0;
  std::vector<uint8_t> inputs_, targets_;  // (N)
  Buffer<Real> dropout_;                   // (N, C) or empty
  Buffer<Real> embedded_;                  // (N, C)
  std::vector<BlockActivations<Real>> blocks_;
  Buffer<Real> ln_f_, ln_f_mean_, ln_f_rstd_;  // (N, C), (N), (N)
  Buffer<Real> logits_, probs_, losses_;       // (N, V), (N, V), (N)

  // Scratch: a branch before it joins the residual stream; gradients of the stream and of the
  // wide, (N, 4C), and narrow, (N, C), tensors on the way.
  Buffer<Real> branch_;     // (N, C)
  Buffer<Real> dresidual_;  // (N, C)
  Buffer<Real> dwide_[2];   // (N, 4C)
  Buffer<Real> dnarrow_;    // (N, C)
  Buffer<Real> dlogits_;    // (N, V)
};

}  // namespace gpt
