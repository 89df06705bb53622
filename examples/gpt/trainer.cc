// SPDX-License-Identifier: Apache-2.0
#include "gpt/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>
#include <utility>

#include "gpt/data.h"
#include "gpt/parallel.h"

namespace gpt {
namespace {

constexpr int64_t kElementBlock = 16 * 1024;
constexpr char kGenerator[] = "dropout";
constexpr char kLr[] = "lr";  // of the last step

std::map<std::string, varve::StateValue> ScheduleState(const LrSchedule& schedule) {
  return {{"type", "cosine"},
          {"max_lr", schedule.max_lr},
          {"min_lr", schedule.min_lr},
          {"warmup_iters", schedule.warmup_iters},
          {"decay_iters", schedule.decay_iters}};
}

// FNV-1a: enough to notice that a run is resumed on another text.
uint64_t HashText(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// All that decides which bytes a sample is.
std::map<std::string, varve::StateValue> DataState(const std::string& text, uint64_t seed) {
  return {{"text_bytes", static_cast<int64_t>(text.size())},
          {"text_hash", std::bit_cast<int64_t>(HashText(text))},
          {"seed", std::bit_cast<int64_t>(seed)}};
}

varve::Status CheckSame(const std::string& what,
                        const std::map<std::string, varve::StateValue>& ours,
                        const std::map<std::string, varve::StateValue>& saved) {
  for (const auto& [key, value] : ours) {
    const auto it = saved.find(key);
    if (it == saved.end() || it->second != value) {
      return varve::Status::InvalidArgument(what + " differs from the checkpoint's in " + key);
    }
  }
  return varve::Status::Ok();
}

// The generator's state as text, the one portable form that the standard library defines.
std::vector<varve::RngState> RngStates(const std::mt19937_64& rng) {
  std::ostringstream out;
  out << rng;
  const std::string text = out.str();
  return {{.rank = 0, .generator = kGenerator, .state = {text.begin(), text.end()}}};
}

varve::Result<std::mt19937_64> ParseRng(const varve::TrainerState& state) {
  const auto it = std::find_if(state.rng.begin(), state.rng.end(),
                               [](const auto& rng) { return rng.generator == kGenerator; });
  if (it == state.rng.end()) {
    return varve::Status::InvalidArgument(
        std::string("the checkpoint has no state of the generator ") + kGenerator);
  }
  std::istringstream in(std::string(it->state.begin(), it->state.end()));
  std::mt19937_64 rng;
  in >> rng;
  if (!in) {
    return varve::Status::InvalidArgument(std::string("the state of the generator ") + kGenerator +
                                          " is malformed");
  }
  return rng;
}

}  // namespace

varve::Status ValidateOptions(const TrainerOptions& options, const std::string& text) {
  const ModelConfig& model = options.model;
  if (model.hidden_size % model.num_heads != 0) {
    return varve::Status::InvalidArgument("hidden size " + std::to_string(model.hidden_size) +
                                          " is no multiple of " + std::to_string(model.num_heads) +
                                          " attention heads");
  }
  if (text.size() <= static_cast<size_t>(model.seq_length)) {
    return varve::Status::InvalidArgument("the text has " + std::to_string(text.size()) +
                                          " bytes; a sequence and its targets need " +
                                          std::to_string(model.seq_length + 1));
  }
  return varve::Status::Ok();
}

Trainer::Trainer(const TrainerOptions& options, std::string text)
    : options_(options),
      text_(std::move(text)),
      params_(ListParams(options.model)),
      model_(options.model),
      adamw_(static_cast<int64_t>(model_.params().size())),
      rng_(options.seed) {
  if (options.precision == Precision::kBf16) {
    master_.resize(model_.params().size());
    weights_.resize(model_.params().size());
  }
  InitWeights();
  ListTensors();
  state_.trainer.lr_scheduler = ScheduleState(options.schedule);
  state_.trainer.lr_scheduler[kLr] = 0.0;
  state_.trainer.extra = DataState(text_, options.seed);
  state_.trainer.rng = RngStates(rng_);
}

// What the optimizer changes.
std::span<float> Trainer::Values() { return master_.empty() ? model_.params() : master_; }

// As GPT-2: the projections onto the residual stream start smaller the more of them there are.
void Trainer::InitWeights() {
  const double residual_branches = 2.0 * options_.model.num_layers;
  for (const Param& param : params_) {
    float* values = Values().data() + param.offset;
    if (param.shape.size() == 1) {
      std::fill_n(values, param.size, param.name.ends_with(".weight") ? 1.0f : 0.0f);
      continue;
    }
    const bool onto_residual = param.name.ends_with("c_proj.weight");
    const double deviation = onto_residual ? 0.02 / std::sqrt(residual_branches) : 0.02;
    std::normal_distribution<float> normal(0, static_cast<float>(deviation));
    std::generate_n(values, param.size, [&] { return normal(rng_); });
  }
  RoundMasters();
  UpdateModel();
}

void Trainer::RoundMasters() {
  ParallelBlocks(std::ssize(weights_), kElementBlock, [&](int64_t begin, int64_t end) {
    std::transform(&master_[begin], master_.data() + end, &weights_[begin], RoundToBf16);
  });
}

void Trainer::UpdateModel() {
  ParallelBlocks(std::ssize(weights_), kElementBlock, [&](int64_t begin, int64_t end) {
    std::transform(&weights_[begin], weights_.data() + end, &model_.params()[begin], WidenBf16);
  });
}

// A kept value is scaled up, so that the sum stays what it would be without dropout.
std::vector<float> Trainer::DrawDropout(int64_t size) {
  std::vector<float> factors(options_.dropout > 0 ? size : 0);
  const float kept = 1 / (1 - options_.dropout);
  constexpr float kUnit = 0x1p-24f;
  std::generate(factors.begin(), factors.end(), [&] {
    const float uniform = static_cast<float>(rng_() >> 40) * kUnit;  // in [0, 1)
    return uniform < options_.dropout ? 0 : kept;
  });
  return factors;
}

void Trainer::ForwardBackward(int batch_size) {
  const ModelConfig& model = options_.model;
  batch_size_ = batch_size;
  const Batch batch = DrawBatch(text_, options_.seed, state_.trainer.consumed_samples, batch_size,
                                model.seq_length);
  const int64_t embedded = int64_t{batch_size} * model.seq_length * model.hidden_size;
  loss_ = model_.Forward(batch.inputs, batch.targets, batch_size, DrawDropout(embedded));
  model_.Backward();
}

StepReport Trainer::Update() {
  varve::TrainerState& state = state_.trainer;
  const int64_t first_sample = state.consumed_samples;
  ++state.global_step;
  state.consumed_samples += batch_size_;
  state.epoch = state.consumed_samples * options_.model.seq_length / std::ssize(text_);
  state.last_loss = loss_;
  const double lr = options_.schedule.At(state.global_step);
  state.lr_scheduler[kLr] = lr;
  state.rng = RngStates(rng_);
  state_.metrics["loss"] = loss_;

  const float norm = GradNorm(model_.grads());
  adamw_.Step(options_.adamw, params_, Values(), model_.grads(),
              ClipScale(norm, options_.clip_grad), static_cast<float>(lr), state.global_step);
  RoundMasters();
  UpdateModel();
  return {.step = state.global_step,
          .loss = loss_,
          .grad_norm = norm,
          .lr = lr,
          .first_sample = first_sample,
          .last_sample = state.consumed_samples - 1};
}

void Trainer::ListTensors() {
  const bool is_bf16 = options_.precision == Precision::kBf16;
  const auto add = [this](const std::string& prefix, const Param& param, varve::DType dtype,
                          void* data, varve::TensorRole role) {
    state_.tensors.push_back({.name = prefix + param.name,
                              .dtype = dtype,
                              .shape = param.shape,
                              .data = data,
                              .role = role});
  };
  for (const Param& param : params_) {
    if (is_bf16) {
      add("model.", param, varve::DType::kBF16, weights_.data() + param.offset,
          varve::TensorRole::kParameter);
      state_.tensors.back().derived_from = "master." + param.name;
    } else {
      add("model.", param, varve::DType::kF32, model_.params().data() + param.offset,
          varve::TensorRole::kParameter);
    }
    if (param.name != kTiedToHead) continue;
    state_.tensors.push_back(state_.tensors.back());  // the same memory: tied
    state_.tensors.back().name = "model.lm_head.weight";
  }
  const auto add_optimizer = [&](const std::string& prefix, Buffer<float>& values) {
    for (const Param& param : params_) {
      add(prefix, param, varve::DType::kF32, values.data() + param.offset,
          varve::TensorRole::kOptimizer);
    }
  };
  if (is_bf16) add_optimizer("master.", master_);
  add_optimizer("exp_avg.", adamw_.exp_avg);
  add_optimizer("exp_avg_sq.", adamw_.exp_avg_sq);
}

varve::Status Trainer::Resume() {
  const varve::TrainerState& state = state_.trainer;
  auto schedule = ScheduleState(options_.schedule);
  schedule[kLr] = state.global_step == 0 ? 0 : options_.schedule.At(state.global_step);
  VARVE_RETURN_IF_ERROR(CheckSame("the schedule", schedule, state.lr_scheduler));
  VARVE_RETURN_IF_ERROR(CheckSame("the data", DataState(text_, options_.seed), state.extra));
  VARVE_ASSIGN_OR_RETURN(rng_, ParseRng(state));
  UpdateModel();
  return varve::Status::Ok();
}

}  // namespace gpt
