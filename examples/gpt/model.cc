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

std::string BlockPrefix(int64_t layer) { return "transformer.h." + std::to_string(layer) + "."; }

// Finds the tensors of a flat array by name.
template <typename Real>
ModelTensors<Real> Locate(const ModelConfig& config, const Position& position, Real* base) {
  std::map<std::string, Real*, std::less<>> by_name;
  for (const Param& param : ListParams(config, position)) by_name[param.name] = base + param.offset;
  const auto at = [&](const std::string& name) {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : it->second;
  };

  ModelTensors<Real> t;
  t.wte = at("transformer.wte.weight");
  t.wpe = at("transformer.wpe.weight");
  const Range layers = LayersOf(config, position);
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
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

// Does nothing when there are no factors.
template <typename Real>
void MultiplyBy(const Buffer<Real>& factors, Real* values) {
  std::transform(factors.begin(), factors.end(), values, values, std::multiplies<>());
}

}  // namespace

template <typename Real>
Model<Real>::Model(const ModelConfig& config, Ranks* ranks)
    : config_(config),
      ranks_(ranks != nullptr ? ranks : &alone_),
      H_(config.hidden_size / at().topology.tp),
      words_(PartOf(kVocabSize, at().tp_rank, at().topology.tp)),
      params_(TotalSize(ListParams(config, at()))),
      grads_(params_.size()),
      p_(Locate(config, at(), params_.data())),
      d_(Locate(config, at(), grads_.data())),
      blocks_(p_.blocks.size()) {
  assert(config.hidden_size % config.num_heads == 0 && config.num_heads % at().topology.tp == 0);
}

template <typename Real>
void Model<Real>::Reserve(int batch_size) {
  if (B_ == batch_size) return;
  B_ = batch_size;
  const int64_t T = config_.seq_length, C = config_.hidden_size, N = B_ * T;
  const auto resize = [](int64_t size, auto&... buffers) { (buffers.resize(size), ...); };
  for (BlockActivations<Real>& a : blocks_) {
    resize(N * C, a.ln_1, a.middle, a.ln_2, a.out);
    resize(N, a.ln_1_mean, a.ln_1_rstd, a.ln_2_mean, a.ln_2_rstd);
    resize(N * H_, a.heads);
    resize(N * H_ * 3, a.qkv);
    resize(N * H_ * 4, a.fc, a.gelu);
    resize(N * T * num_heads(), a.att);
  }
  resize(N * C, embedded_, ln_f_, branch_, dresidual_);
  resize(N, ln_f_mean_, ln_f_rstd_, losses_);
  resize(N * words_.size(), part_logits_, dpart_logits_);
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
  assert(std::ssize(inputs) == int64_t{B_} * config_.seq_length && targets.size() == inputs.size());
  inputs_.assign(inputs.begin(), inputs.end());
  targets_.assign(targets.begin(), targets.end());
  dropout_.assign(dropout.begin(), dropout.end());

  if (at().is_first_stage()) EmbedForward();
  ranks_->AwaitForward(std::span(embedded_));
  const Real* residual = embedded_.data();  // (N, C)
  for (size_t i = 0; i < blocks_.size(); ++i) {
    BlockForward(p_.blocks[i], residual, &blocks_[i]);
    residual = blocks_[i].out.data();
  }
  ranks_->PassForward(std::span(last()));
  return at().is_last_stage() ? HeadForward() : Real{0};
}

template <typename Real>
void Model<Real>::EmbedForward() {
  const int64_t T = config_.seq_length, C = config_.hidden_size;
  const Real* wpe = at().tp_rank == 0 ? p_.wpe : nullptr;  // one of those that are added up
  EmbeddingForward(embedded_.data(), inputs_.data(), p_.wte, wpe, words_, B_, T, C);
  ranks_->SumOverTp(std::span(embedded_));
  MultiplyBy(dropout_, embedded_.data());
}

template <typename Real>
Real Model<Real>::HeadForward() {
  const int64_t C = config_.hidden_size, N = int64_t{B_} * config_.seq_length;
  LayerNormForward(ln_f_.data(), ln_f_mean_.data(), ln_f_rstd_.data(), last().data(),
                   p_.ln_f_weight, p_.ln_f_bias, N, C);
  LinearForward<Real>(part_logits_.data(), ln_f_.data(), p_.wte, nullptr, N, C, words_.size());
  ranks_->GatherColumns(std::span<const Real>(part_logits_), N, std::span(logits_));
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
  LinearForward(a->qkv.data(), a->ln_1.data(), p.c_attn_weight, p.c_attn_bias, N, C, 3 * H_);
  AttentionForward(a->heads.data(), a->att.data(), a->qkv.data(), B_, T, H_, num_heads());
  LinearForward(branch, a->heads.data(), p.attn_weight, OnceOverTp(p.attn_bias), N, H_, C);
  ranks_->SumOverTp(std::span(branch_));
  ResidualForward(a->middle.data(), inp, branch, N * C);

  LayerNormForward(a->ln_2.data(), a->ln_2_mean.data(), a->ln_2_rstd.data(), a->middle.data(),
                   p.ln_2_weight, p.ln_2_bias, N, C);
  LinearForward(a->fc.data(), a->ln_2.data(), p.c_fc_weight, p.c_fc_bias, N, C, 4 * H_);
  GeluForward(a->gelu.data(), a->fc.data(), N * 4 * H_);
  LinearForward(branch, a->gelu.data(), p.mlp_weight, OnceOverTp(p.mlp_bias), N, 4 * H_, C);
  ranks_->SumOverTp(std::span(branch_));
  ResidualForward(a->out.data(), a->middle.data(), branch, N * C);
}

template <typename Real>
void Model<Real>::Backward() {
  std::fill(grads_.begin(), grads_.end(), Real{0});
  if (at().is_last_stage()) HeadBackward();
  ranks_->AwaitBackward(std::span(dresidual_));
  for (size_t i = blocks_.size(); i-- > 0;) {
    const Real* inp = i == 0 ? embedded_.data() : blocks_[i - 1].out.data();
    BlockBackward(p_.blocks[i], d_.blocks[i], inp, blocks_[i]);
  }
  ranks_->PassBackward(std::span<const Real>(dresidual_));
  if (at().is_first_stage()) EmbedBackward();
  // The copies of the tied tensor stay equal.
  const int64_t tied = d_.wte == nullptr ? 0 : words_.size() * config_.hidden_size;
  ranks_->SumOfEnds(std::span(d_.wte, tied));
}

template <typename Real>
void Model<Real>::HeadBackward() {
  const int64_t C = config_.hidden_size, N = int64_t{B_} * config_.seq_length;
  Real* dlogits = Zeroed(&dlogits_, N * kVocabSize);
  CrossEntropyBackward(dlogits, probs_.data(), targets_.data(), Real{1} / static_cast<Real>(N), N,
                       kVocabSize);
  for (int64_t n = 0; n < N; ++n) {
    std::copy_n(dlogits + n * kVocabSize + words_.begin, words_.size(),
                dpart_logits_.begin() + n * words_.size());
  }
  Real* dln_f = Zeroed(&dnarrow_, N * C);
  LinearBackward<Real>(dln_f, d_.wte, nullptr, dpart_logits_.data(), ln_f_.data(), p_.wte, N, C,
                       words_.size());
  ranks_->SumOverTp(std::span(dnarrow_));
  LayerNormBackward(Zeroed(&dresidual_, N * C), d_.ln_f_weight, d_.ln_f_bias, dln_f, last().data(),
                    p_.ln_f_weight, ln_f_mean_.data(), ln_f_rstd_.data(), N, C);
}

template <typename Real>
void Model<Real>::EmbedBackward() {
  MultiplyBy(dropout_, dresidual_.data());
  EmbeddingBackward(d_.wte, d_.wpe, dresidual_.data(), inputs_.data(), words_, B_,
                    config_.seq_length, config_.hidden_size);
}

// On entry dresidual_ is the gradient of the block's output, on return of its input. The residual
// stream passes it on unchanged. Each branch adds its own part.
template <typename Real>
void Model<Real>::BlockBackward(const BlockTensors<Real>& p, const BlockTensors<Real>& d,
                                const Real* inp, const BlockActivations<Real>& a) {
  const int64_t T = config_.seq_length, C = config_.hidden_size, N = B_ * T;
  Real* dresidual = dresidual_.data();  // (N, C)

  Real* dgelu = Zeroed(&dwide_[0], 4 * N * H_);
  LinearBackward(dgelu, d.mlp_weight, d.mlp_bias, dresidual, a.gelu.data(), p.mlp_weight, N, 4 * H_,
                 C);
  Real* dfc = Zeroed(&dwide_[1], 4 * N * H_);
  GeluBackward(dfc, dgelu, a.fc.data(), N * 4 * H_);
  Real* dln_2 = Zeroed(&dnarrow_, N * C);
  LinearBackward(dln_2, d.c_fc_weight, d.c_fc_bias, dfc, a.ln_2.data(), p.c_fc_weight, N, C,
                 4 * H_);
  ranks_->SumOverTp(std::span(dnarrow_));
  LayerNormBackward(dresidual, d.ln_2_weight, d.ln_2_bias, dln_2, a.middle.data(), p.ln_2_weight,
                    a.ln_2_mean.data(), a.ln_2_rstd.data(), N, C);

  Real* dheads = Zeroed(&dnarrow_, N * H_);
  LinearBackward(dheads, d.attn_weight, d.attn_bias, dresidual, a.heads.data(), p.attn_weight, N,
                 H_, C);
  Real* dqkv = Zeroed(&dwide_[0], 3 * N * H_);
  AttentionBackward(dqkv, dheads, a.qkv.data(), a.att.data(), B_, T, H_, num_heads());
  Real* dln_1 = Zeroed(&dnarrow_, N * C);
  LinearBackward(dln_1, d.c_attn_weight, d.c_attn_bias, dqkv, a.ln_1.data(), p.c_attn_weight, N, C,
                 3 * H_);
  ranks_->SumOverTp(std::span(dnarrow_));
  LayerNormBackward(dresidual, d.ln_1_weight, d.ln_1_bias, dln_1, inp, p.ln_1_weight,
                    a.ln_1_mean.data(), a.ln_1_rstd.data(), N, C);
}

template class Model<float>;
template class Model<double>;

}  // namespace gpt
