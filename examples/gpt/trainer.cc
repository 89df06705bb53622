// SPDX-License-Identifier: Apache-2.0
#include "gpt/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>
#include <utility>

#include "gpt/data.h"

namespace gpt {
namespace {

constexpr char kGenerator[] = "data";

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

std::map<std::string, varve::StateValue> TextState(const std::string& text) {
  return {{"text_bytes", static_cast<int64_t>(text.size())},
          {"text_hash", std::bit_cast<int64_t>(HashText(text))}};
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
std::vector<uint8_t> RngBytes(const std::mt19937_64& rng) {
  std::ostringstream out;
  out << rng;
  const std::string text = out.str();
  return {text.begin(), text.end()};
}

varve::Result<std::mt19937_64> ParseRng(const varve::TrainerState& state) {
  const auto it = std::find_if(state.rng.begin(), state.rng.end(),
                               [](const auto& rng) { return rng.generator == kGenerator; });
  if (it == state.rng.end()) {
    return varve::Status::InvalidArgument("the checkpoint has no state of the generator 'data'");
  }
  std::istringstream in(std::string(it->state.begin(), it->state.end()));
  std::mt19937_64 rng;
  in >> rng;
  if (!in) return varve::Status::InvalidArgument("the state of the generator 'data' is malformed");
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
  InitWeights();
  UpdateModel();
}

// As GPT-2: the projections onto the residual stream start smaller the more of them there are.
void Trainer::InitWeights() {
  const double residual_branches = 2.0 * options_.model.num_layers;
  for (const Param& param : params_) {
    float* master = adamw_.master.data() + param.offset;
    if (param.shape.size() == 1) {
      std::fill_n(master, param.size, param.name.ends_with(".weight") ? 1.0f : 0.0f);
      continue;
    }
    const bool onto_residual = param.name.ends_with("c_proj.weight");
    const double deviation = onto_residual ? 0.02 / std::sqrt(residual_branches) : 0.02;
    std::normal_distribution<float> normal(0, static_cast<float>(deviation));
    std::generate_n(master, param.size, [&] { return normal(rng_); });
  }
  std::transform(adamw_.master.begin(), adamw_.master.end(), adamw_.weights.begin(), RoundToBf16);
}

void Trainer::UpdateModel() {
  std::transform(adamw_.weights.begin(), adamw_.weights.end(), model_.params().begin(), WidenBf16);
}

StepReport Trainer::Step() {
  const int B = options_.micro_batch_size;
  const Batch batch = DrawBatch(text_, B, options_.model.seq_length, &rng_);
  last_loss_ = model_.Forward(batch.inputs, batch.targets, B);
  model_.Backward();

  ++step_;
  consumed_samples_ += B;
  const double lr = options_.schedule.At(step_);
  const float norm = GradNorm(model_.grads());
  adamw_.Step(options_.adamw, params_, model_.grads(), ClipScale(norm, options_.clip_grad),
              static_cast<float>(lr), step_);
  UpdateModel();
  return {.step = step_, .loss = last_loss_, .grad_norm = norm, .lr = lr};
}

std::vector<StateTensor> Trainer::Tensors() {
  std::vector<StateTensor> tensors;
  for (const Param& param : params_) {
    uint16_t* weights = adamw_.weights.data() + param.offset;
    tensors.push_back({.name = "model." + param.name,
                       .dtype = varve::DType::kBF16,
                       .shape = param.shape,
                       .data = weights,
                       .derived_from = "master." + param.name});
    if (param.name != kTiedToHead) continue;
    tensors.push_back(tensors.back());
    tensors.back().name = "model.lm_head.weight";
    tensors.back().tied = true;
  }
  const auto add_fp32 = [&](const std::string& prefix, Buffer<float>& values) {
    for (const Param& param : params_) {
      tensors.push_back({.name = prefix + param.name,
                         .shape = param.shape,
                         .data = values.data() + param.offset});
    }
  };
  add_fp32("master.", adamw_.master);
  add_fp32("exp_avg.", adamw_.exp_avg);
  add_fp32("exp_avg_sq.", adamw_.exp_avg_sq);
  return tensors;
}

varve::TrainerState Trainer::State() const {
  varve::TrainerState state;
  state.global_step = step_;
  state.epoch = consumed_samples_ * options_.model.seq_length / static_cast<int64_t>(text_.size());
  state.consumed_samples = consumed_samples_;
  state.last_loss = last_loss_;
  state.lr_scheduler = ScheduleState(options_.schedule);
  state.rng.push_back({.rank = 0, .generator = kGenerator, .state = RngBytes(rng_)});
  state.extra = TextState(text_);
  return state;
}

varve::Status Trainer::Restore(const varve::TrainerState& state) {
  VARVE_RETURN_IF_ERROR(
      CheckSame("the schedule", ScheduleState(options_.schedule), state.lr_scheduler));
  VARVE_RETURN_IF_ERROR(CheckSame("the text", TextState(text_), state.extra));
  VARVE_ASSIGN_OR_RETURN(rng_, ParseRng(state));
  step_ = state.global_step;
  consumed_samples_ = state.consumed_samples;
  last_loss_ = static_cast<float>(state.last_loss);
  UpdateModel();
  return varve::Status::Ok();
}

}  // namespace gpt
