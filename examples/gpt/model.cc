// SPDX-License-Identifier: Apache-2.0
#include "gpt/model.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <map>
#include <numeric>

#include "gpt/layers.h"

namespace gpt {
namespace {

std::string BlockPrefix(int layer) { return "transformer.h." + std::to_string(layer) + "."; }

// Finds the tensors of a flat array by name.
template <typename Real>
ModelTensors<Real> Locate(const ModelConfig& config, Real* base) {
  std::map<std::string, Real*, std::less<>> by_name;
  for (const Param& param : ListParams(config)) by_name[param.name] = base + param.offset;
  const auto at = [&](const std::string& name) { return by_name.at(name); };

  ModelTensors<Real> t;
  t.wte = at("transformer.wte.weight");
  t.wpe = at("transformer.wpe.weight");
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string h = BlockPrefix(layer);
    t.blocks.push_back({
        .ln_1_weight = at(h + "ln_1.weight"),
        .ln_1_bias = at(h + "ln_1.bias"),
        .c_attn_weight = at(h + "attn.c_attn.weight"),
        .c_attn_bias = at(h + "attn.c_attn.bias"),
        .attn_weight = at(h + "attn.c_proj.weight"),
        .attn_bias = at(h + "attn.c_proj.bias"),
        .ln_2_weight = at(h + "ln_2.weight"),
        .ln_2_bias = at(h + "ln_2.bias"),
        .c_fc_weight = at(h + "mlp.c_fc.weight"),
        .c_fc_bias = at(h + "mlp.c_fc.bias"),
        .mlp_weight = at(h + "mlp.c_proj.weight"),
        .mlp_bias = at(h + "mlp.c_proj.bias"),
    });
  }
  t.ln_f_weight = at("transformer.ln_f.weight");
  t.ln_f_bias = at("transformer.ln_f.bias");
  return t;
}

int64_t TotalSize(const std::vector<Param>& params) {
  return params.back().offset + params.back().size;
}

// Nothing happens when there are no factors.
template <typename Real>
void MultiplyBy(const Buffer<Real>& factors, Real* values) {
  std::transform(factors.begin(), factors.end(), values, values, std::multiplies<>());
}

}  // namespace

std::vector<Param> ListParams(const ModelConfig& config) {
  const int64_t C = config.hidden_size;
  std::vector<Param> params;
  int64_t offset = 0;
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    const int64_t size = std::reduce(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    params.push_back({std::move(name), std::move(shape), offset, size});
    offset += size;
  };
  add("transformer.wte.weight", {kVocabSize, C});
  add("transformer.wpe.weight", {config.seq_length, C});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string h = BlockPrefix(layer);
    add(h + "ln_1.weight", {C});
    add(h + "ln_1.bias", {C});
    add(h + "attn.c_attn.weight", {3 * C, C});
    add(h + "attn.c_attn.bias", {3 * C});
    add(h + "attn.c_proj.weight", {C, C});
    add(h + "attn.c_proj.bias", {C});
    add(h + "ln_2.weight", {C});
    add(h + "ln_2.bias", {C});
    add(h + "mlp.c_fc.weight", {4 * C, C});
    add(h + "mlp.c_fc.bias", {4 * C});
    add(h + "mlp.c_proj.weight", {C, 4 * C});
    add(h + "mlp.c_proj.bias", {C});
  }
  add("transformer.ln_f.weight", {C});
  add("transformer.ln_f.bias", {C});
  return params;
}

template <typename Real>
Model<Real>::Model(const ModelConfig& config)
    : config_(config),
      params_(TotalSize(ListParams(config))),
      grads_(params_.size()),
      p_(Locate(config, params_.data())),
      d_(Locate(config, grads_.data())),
      blocks_(config.num_layers) {
  assert(config.hidden_size % config.num_heads == 0);
}

template <typename Real>
void Model<Real>::Reserve(int batch_size) {
  if (B_ == batch_size) return;
  B_ = batch_size;
  const int64_t T = config_.seq_length, C = config_.hidden_size, N = B_ * T;
  const auto resize = [](int64_t size, auto&... buffers) { (buffers.resize(size), ...); };
  for (BlockActivations<Real>& a : blocks_) {
    resize(N * C, a.ln_1, a.heads, a.middle, a.ln_2, a.out);
    resize(N, a.ln_1_mean, a.ln_1_rstd, a.ln_2_mean, a.ln_2_rstd);
    resize(N * C * 3, a.qkv);
    resize(N * C * 4, a.fc, a.gelu);
    resize(N * T * config_.num_heads, a.att);
  }
  resize(N * C, embedded_, ln_f_, branch_);
  resize(N, ln_f_mean_, ln_f_rstd_, losses_);
  resize(N * kVocabSize, logits_, probs_);
}

template <typename Real>
Real* Model<Real>::Zeroed(Buffer<Real>* buffer, int64_t size) {
  buffer->assign(size, Real{0});
  return buffer->data();
}

template <typename Real>
Real Model<Real>::Forward(std::span<const uint8_t> inputs, std::span<const uint8_t> targets,
                          int batch_size, std::span<const Real> dropout) {
  Reserve(batch_size);
  const int64_t T = config_.seq_length, C = config_.hidden_size, N = B_ * T;
  assert(inputs.size() == static_cast<size_t>(N) && targets.size() == inputs.size());
  inputs_.assign(inputs.begin(), inputs.end());
  targets_.assign(targets.begin(), targets.end());
  dropout_.assign(dropout.begin(), dropout.end());

  EmbeddingForward(embedded_.data(), inputs_.data(), p_.wte, p_.wpe, B_, T, C);
  MultiplyBy(dropout_, embedded_.data());
  const Real* residual = embedded_.data();  // (N, C)
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    BlockForward(p_.blocks[layer], residual, &blocks_[layer]);
    residual = blocks_[layer].out.data();
  }
  LayerNormForward(ln_f_.data(), ln_f_mean_.data(), ln_f_rstd_.data(), residual, p_.ln_f_weight,
                   p_.ln_f_bias, N, C);
  LinearForward<Real>(logits_.data(), ln_f_.data(), p_.wte, nullptr, N, C, kVocabSize);
  CrossEntropyForward(losses_.data(), probs_.data(), logits_.data(), targets_.data(), N,
                      kVocabSize);
  const double sum = std::accumulate(losses_.begin(), losses_.end(), 0.0);
  return static_cast<Real>(sum / static_cast<double>(N));
}

template <typename Real>
void Model<Real>::BlockForward(const BlockTensors<Real>& p, const Real* inp,
                               BlockActivations<Real>* a) {
  const int64_t T = config_.seq_length, C = config_.hidden_size, N = B_ * T;
  Real* branch = branch_.data();  // (N, C)
  LayerNormForward(a->ln_1.data(), a->ln_1_mean.data(), a->ln_1_rstd.data(), inp, p.ln_1_weight,
                   p.ln_1_bias, N, C);
  LinearForward(a->qkv.data(), a->ln_1.data(), p.c_attn_weight, p.c_attn_bias, N, C, 3 * C);
  AttentionForward(a->heads.data(), a->att.data(), a->qkv.data(), B_, T, C, config_.num_heads);
  LinearForward(branch, a->heads.data(), p.attn_weight, p.attn_bias, N, C, C);
  ResidualForward(a->middle.data(), inp, branch, N * C);

  LayerNormForward(a->ln_2.data(), a->ln_2_mean.data(), a->ln_2_rstd.data(), a->middle.data(),
                   p.ln_2_weight, p.ln_2_bias, N, C);
  LinearForward(a->fc.data(), a->ln_2.data(), p.c_fc_weight, p.c_fc_bias, N, C, 4 * C);
  GeluForward(a->gelu.data(), a->fc.data(), N * 4 * C);
  LinearForward(branch, a->gelu.data(), p.mlp_weight, p.mlp_bias, N, 4 * C, C);
  ResidualForward(a->out.data(), a->middle.data(), branch, N * C);
}

template <typename Real>
void Model<Real>::Backward() {
  const int64_t T = config_.seq_length, C = config_.hidden_size, N = B_ * T;
  std::fill(grads_.begin(), grads_.end(), Real{0});
  const Real* last = blocks_.empty() ? embedded_.data() : blocks_.back().out.data();  // (N, C)

  Real* dlogits = Zeroed(&dlogits_, N * kVocabSize);
  CrossEntropyBackward(dlogits, probs_.data(), targets_.data(), Real{1} / static_cast<Real>(N), N,
                       kVocabSize);
  Real* dln_f = Zeroed(&dnarrow_, N * C);
  LinearBackward<Real>(dln_f, d_.wte, nullptr, dlogits, ln_f_.data(), p_.wte, N, C, kVocabSize);
  Real* dresidual = Zeroed(&dresidual_, N * C);
  LayerNormBackward(dresidual, d_.ln_f_weight, d_.ln_f_bias, dln_f, last, p_.ln_f_weight,
                    ln_f_mean_.data(), ln_f_rstd_.data(), N, C);
  for (int layer = config_.num_layers - 1; layer >= 0; --layer) {
    const Real* inp = layer == 0 ? embedded_.data() : blocks_[layer - 1].out.data();
    BlockBackward(p_.blocks[layer], d_.blocks[layer], inp, blocks_[layer]);
  }
  MultiplyBy(dropout_, dresidual);
  EmbeddingBackward(d_.wte, d_.wpe, dresidual, inputs_.data(), B_, T, C);
}

// On entry dresidual_ is the gradient of the block's output, on return of its input. The residual
// stream passes it on unchanged; each branch adds its own part.
template <typename Real>
void Model<Real>::BlockBackward(const BlockTensors<Real>& p, const BlockTensors<Real>& d,
                                const Real* inp, const BlockActivations<Real>& a) {
  const int64_t T = config_.seq_length, C = config_.hidden_size, N = B_ * T;
  const int64_t narrow = N * C;
  Real* dresidual = dresidual_.data();  // (N, C)

  Real* dgelu = Zeroed(&dwide_[0], 4 * narrow);
  LinearBackward(dgelu, d.mlp_weight, d.mlp_bias, dresidual, a.gelu.data(), p.mlp_weight, N, 4 * C,
                 C);
  Real* dfc = Zeroed(&dwide_[1], 4 * narrow);
  GeluBackward(dfc, dgelu, a.fc.data(), N * 4 * C);
  Real* dln_2 = Zeroed(&dnarrow_, narrow);
  LinearBackward(dln_2, d.c_fc_weight, d.c_fc_bias, dfc, a.ln_2.data(), p.c_fc_weight, N, C, 4 * C);
  LayerNormBackward(dresidual, d.ln_2_weight, d.ln_2_bias, dln_2, a.middle.data(), p.ln_2_weight,
                    a.ln_2_mean.data(), a.ln_2_rstd.data(), N, C);

  Real* dheads = Zeroed(&dnarrow_, narrow);
  LinearBackward(dheads, d.attn_weight, d.attn_bias, dresidual, a.heads.data(), p.attn_weight, N, C,
                 C);
  Real* dqkv = Zeroed(&dwide_[0], 3 * narrow);
  AttentionBackward(dqkv, dheads, a.qkv.data(), a.att.data(), B_, T, C, config_.num_heads);
  Real* dln_1 = Zeroed(&dnarrow_, narrow);
  LinearBackward(dln_1, d.c_attn_weight, d.c_attn_bias, dqkv, a.ln_1.data(), p.c_attn_weight, N, C,
                 3 * C);
  LayerNormBackward(dresidual, d.ln_1_weight, d.ln_1_bias, dln_1, inp, p.ln_1_weight,
                    a.ln_1_mean.data(), a.ln_1_rstd.data(), N, C);
}

template class Model<float>;
template class Model<double>;

}  // namespace gpt
