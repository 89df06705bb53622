// SPDX-License-Identifier: Apache-2.0
#include "gpt/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

#include "gpt/data.h"
#include "gpt/parallel.h"
#include "varve/load.h"

namespace gpt {
namespace {

constexpr int64_t kElementBlock = 16'384;
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

varve::Result<std::mt19937_64> ParseRng(const varve::TrainerProgress& state) {
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

varve::Topology TopologyOf(const Topology& topology) {
  return {.dp = static_cast<uint32_t>(topology.dp),
          .tp = static_cast<uint32_t>(topology.tp),
          .pp = static_cast<uint32_t>(topology.pp),
          .zero_stage = topology.zero ? 1u : 0u,
          .world_size = static_cast<uint32_t>(topology.size())};
}

// With ZeRO the data parallel ranks share the flat array, even where that cuts a tensor.
Range OptimizerSlice(int64_t size, const Position& at) {
  return at.topology.zero ? PartOf(size, at.dp_rank, at.topology.dp) : Range{0, size};
}

}  // namespace

varve::Status ValidateOptions(const TrainerOptions& options, const std::string& text,
                              const Topology& topology) {
  const ModelConfig& model = options.model;
  const auto invalid = [](const std::string& message) {
    return varve::Status::InvalidArgument(message);
  };
  if (model.hidden_size % model.num_heads != 0) {
    return invalid("hidden size " + std::to_string(model.hidden_size) + " is no multiple of " +
                   std::to_string(model.num_heads) + " attention heads");
  }
  if (model.num_heads % topology.tp != 0 || kVocabSize % topology.tp != 0) {
    return invalid(std::to_string(topology.tp) + " tensor parallel ranks cannot share " +
                   std::to_string(model.num_heads) + " attention heads and " +
                   std::to_string(kVocabSize) + " words equally");
  }
  if (model.num_layers < topology.pp) {
    return invalid(std::to_string(topology.pp) + " stages cannot share " +
                   std::to_string(model.num_layers) + " layers");
  }
  if (text.size() <= static_cast<size_t>(model.seq_length)) {
    return invalid("the text has " + std::to_string(text.size()) +
                   " bytes; a sequence and its targets need " +
                   std::to_string(model.seq_length + 1));
  }
  return varve::Status::Ok();
}

Trainer::Trainer(const TrainerOptions& options, std::string text, Ranks* ranks)
    : options_(options),
      text_(std::move(text)),
      ranks_(ranks != nullptr ? ranks : &alone_),
      params_(ListParams(options.model, ranks_->position())),
      model_(options.model, ranks_),
      slice_(OptimizerSlice(std::ssize(model_.params()), ranks_->position())),
      adamw_(slice_),
      rng_(options.seed) {
  if (options.precision == Precision::kBf16) {
    master_.resize(slice_.size());
    weights_.resize(model_.params().size());
  }
  InitWeights();
  ListTensors();
  state_.trainer.lr_scheduler = ScheduleState(options.schedule);
  state_.trainer.lr_scheduler[kLr] = 0.0;
  state_.trainer.extra = DataState(text_, options.seed);
  state_.trainer.rng = RngStates(rng_);
  state_.topology = TopologyOf(ranks_->position().topology);
}

// Returns the values that the optimizer changes.
std::span<float> Trainer::Values() {
  return master_.empty() ? SliceOf(model_.params()) : std::span<float>(master_);
}

// Every rank draws the whole of every tensor, in one order, and keeps its part.
void Trainer::InitWeights() {
  for (const Param& whole : ListParams(options_.model)) {
    const std::vector<float> values = DrawWhole(whole);
    const auto mine = std::find_if(params_.begin(), params_.end(),
                                   [&](const Param& param) { return param.name == whole.name; });
    if (mine != params_.end()) TakePart(*mine, values, model_.params().data() + mine->offset);
  }
  if (options_.precision == Precision::kFp32) return;
  std::ranges::copy(SliceOf(model_.params()), master_.begin());
  ShareUpdate();
}

// As in GPT-2, the projections onto the residual stream start smaller the more of them there are.
std::vector<float> Trainer::DrawWhole(const Param& param) {
  if (param.shape.size() == 1) {
    return std::vector<float>(param.size, param.name.ends_with(".weight") ? 1.0f : 0.0f);
  }
  const double residual_branches = 2.0 * options_.model.num_layers;
  const bool onto_residual = param.name.ends_with("c_proj.weight");
  const double deviation = onto_residual ? 0.02 / std::sqrt(residual_branches) : 0.02;
  std::normal_distribution<float> normal(0, static_cast<float>(deviation));
  std::vector<float> values(param.size);
  std::generate(values.begin(), values.end(), [&] { return normal(rng_); });
  return values;
}

// Where several ranks have a slice each, all get the others' updates.
void Trainer::ShareUpdate() {
  const bool has_slices = ranks_->position().topology.zero;
  if (master_.empty()) {
    if (has_slices) ranks_->GatherSlices(model_.params());
    return;
  }
  RoundMasters();
  if (has_slices) ranks_->GatherSlices(std::span<uint16_t>(weights_));
  UpdateModel();
}

void Trainer::RoundMasters() {
  ParallelBlocks(std::ssize(master_), kElementBlock, [&](int64_t begin, int64_t end) {
    std::transform(&master_[begin], master_.data() + end, &weights_[slice_.begin + begin],
                   RoundToBf16);
  });
}

void Trainer::UpdateModel() {
  ParallelBlocks(std::ssize(weights_), kElementBlock, [&](int64_t begin, int64_t end) {
    std::transform(&weights_[begin], weights_.data() + end, &model_.params()[begin], WidenBf16);
  });
}

// A kept value is scaled up, so that the sum stays what it would be without dropout.
// Drawn for all samples of the step, whichever rank has them: so the generator goes on alike on
// all.
std::vector<float> Trainer::DrawDropout() {
  const ModelConfig& model = options_.model;
  const int64_t size = int64_t{batch_size_} * model.seq_length * model.hidden_size;
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
  const Position& at = ranks_->position();
  batch_size_ = batch_size;
  const int mine = batch_size / at.topology.dp;
  const int64_t first = state_.trainer.consumed_samples + int64_t{mine} * at.dp_rank;
  const Batch batch = DrawBatch(text_, options_.seed, first, mine, options_.model.seq_length);
  const std::vector<float> dropout = DrawDropout();
  const Range of_mine = PartOf(std::ssize(dropout), at.dp_rank, at.topology.dp);
  loss_ = model_.Forward(batch.inputs, batch.targets, mine,
                         std::span(dropout).subspan(of_mine.begin, of_mine.size()));
  ranks_->FromLastStage(&loss_);
  ranks_->MeanOverDp(&loss_);
  model_.Backward();
  ranks_->MeanOverDp(model_.grads(), at.topology.zero);
}

// Returns the norm of the whole model's gradient. Each element counts once, however many ranks have
// it.
float Trainer::GradNorm() {
  const Position& at = ranks_->position();
  double sum = 0;
  for (const Param& param : params_) {
    if (!param.is_first_copy || (at.dp_rank > 0 && !at.topology.zero)) continue;
    const Range here = Intersect(slice_, {param.offset, param.offset + param.size});
    sum += SquareSum(model_.grads().subspan(here.begin, here.size()));
  }
  return static_cast<float>(std::sqrt(ranks_->Sum(sum)));
}

StepReport Trainer::Update() {
  varve::TrainerProgress& state = state_.trainer;
  const int64_t first_sample = state.consumed_samples;
  ++state.global_step;
  state.consumed_samples += batch_size_;
  state.epoch = state.consumed_samples * options_.model.seq_length / std::ssize(text_);
  state.last_loss = loss_;
  const double lr = options_.schedule.At(state.global_step);
  state.lr_scheduler[kLr] = lr;
  state.rng = RngStates(rng_);
  state_.metrics["loss"] = loss_;

  const float norm = GradNorm();
  const float scale = ClipScale(norm, options_.clip_grad);
  adamw_.Step(options_.adamw, params_, Values(), SliceOf(model_.grads()), scale,
              static_cast<float>(lr), state.global_step);
  ShareUpdate();
  if (options_.tells_step) state_.optimizer_step = MakeHint(static_cast<float>(lr), scale);
  return {.step = state.global_step,
          .loss = loss_,
          .grad_norm = norm,
          .lr = lr,
          .first_sample = first_sample,
          .last_sample = state.consumed_samples - 1};
}

// What a save should know of the step that the optimizer has done.
std::shared_ptr<const varve::OptimizerStep> Trainer::MakeHint(float lr, float scale) const {
  const AdamWConfig& adamw = options_.adamw;
  auto hint = std::make_shared<varve::OptimizerStep>();
  varve::OptimizerStep::Group vectors{
      .learning_rate = lr, .beta1 = adamw.beta1, .beta2 = adamw.beta2, .eps = adamw.epsilon};
  varve::OptimizerStep::Group matrices = vectors;
  matrices.weight_decay = adamw.weight_decay;
  hint->groups = {vectors, matrices};
  hint->number = static_cast<uint64_t>(step());
  hint->gradient_scale = scale;
  const std::string weight = options_.precision == Precision::kBf16 ? "master." : "model.";
  for (const Param& param : params_) {
    hint->parameters.push_back({.weight = weight + param.name,
                                .moment = "exp_avg." + param.name,
                                .square = "exp_avg_sq." + param.name,
                                .group = Decays(param) ? 1u : 0u});
  }
  return hint;
}

// `data` is where the flat range starts. Nothing is added if the rank has no element of the tensor.
void Trainer::AddTensor(const std::string& prefix, const Param& param, varve::DType dtype,
                        void* data, Range flat, varve::TensorRole role) {
  if (flat.size() == 0) return;
  const bool is_whole = flat.size() == param.size;
  state_.tensors.push_back({{.name = prefix + param.name,
                             .dtype = dtype,
                             .shape = is_whole ? param.shape : std::vector<int64_t>{flat.size()},
                             .role = role},
                            data});
  shards_.push_back({state_.tensors.back().name, param, flat});
  if (ranks_->position().topology.size() > 1) {
    state_.tensors.back().layout = LayoutOf(shards_.back());
  }
}

void Trainer::ListTensors() {
  const bool is_bf16 = options_.precision == Precision::kBf16;
  for (const Param& param : params_) {
    void* data = is_bf16 ? static_cast<void*>(weights_.data() + param.offset)
                         : model_.params().data() + param.offset;
    AddTensor("model.", param, is_bf16 ? varve::DType::kBF16 : varve::DType::kF32, data,
              {0, param.size}, varve::TensorRole::kParameter);
    // With ZeRO the master is on several ranks, and StateToSave names it.
    const bool has_master = is_bf16 && slice_.size() == std::ssize(weights_);
    if (has_master) state_.tensors.back().derived_from = "master." + param.name;
    if (param.name != kTiedToHead) continue;
    state_.tensors.push_back(state_.tensors.back());  // the same memory: tied
    state_.tensors.back().name = "model.lm_head.weight";
    shards_.push_back(shards_.back());
    shards_.back().name = "model.lm_head.weight";
  }
  const auto add_optimizer = [&](const std::string& prefix, Buffer<float>& values) {
    for (const Param& param : params_) {
      const Range here = Intersect(slice_, {param.offset, param.offset + param.size});
      AddTensor(prefix, param, varve::DType::kF32, values.data() + (here.begin - slice_.begin),
                {here.begin - param.offset, here.end - param.offset},
                varve::TensorRole::kOptimizer);
    }
  };
  if (is_bf16) add_optimizer("master.", master_);
  add_optimizer("exp_avg.", adamw_.exp_avg);
  add_optimizer("exp_avg_sq.", adamw_.exp_avg_sq);
}

const TensorShard* Trainer::ShardOf(std::string_view name) const {
  const auto it = std::find_if(shards_.begin(), shards_.end(),
                               [&](const TensorShard& shard) { return shard.name == name; });
  return it == shards_.end() ? nullptr : &*it;
}

// With ZeRO a rank has a part of a weight's master, and saves that part of the weight. This names
// masters for saves only. For a load, Resume makes them.
void Trainer::NameMasters(varve::TrainingState* state) const {
  std::set<std::string> names;
  for (const varve::StateTensor& tensor : state->tensors) names.insert(tensor.name);
  for (varve::StateTensor& tensor : state->tensors) {
    if (tensor.role != varve::TensorRole::kParameter) continue;
    const std::string master = "master." + ShardOf(tensor.name)->param.name;
    if (names.contains(master)) tensor.derived_from = master;
  }
}

// With ZeRO the two stages that have the tied parameter cut its optimizer's state differently.
// Parts of a tensor may not overlap unless they are the same, so the first stage saves it for both.
varve::TrainingState Trainer::StateToSave() const {
  varve::TrainingState saved = state_;
  const Position& at = ranks_->position();
  if (!at.topology.zero) return saved;
  std::erase_if(saved.tensors, [&](const varve::StateTensor& tensor) {
    return !at.is_first_stage() && tensor.role == varve::TensorRole::kOptimizer &&
           ShardOf(tensor.name)->param.name == kTiedToHead;
  });
  NameMasters(&saved);
  return saved;
}

// An imported state has none of this trainer's schedule, text and generator, so the training uses
// those of the flags. Returns true when the state has such a generator.
bool Trainer::AdoptForeignState() {
  varve::TrainerProgress& state = state_.trainer;
  auto schedule = ScheduleState(options_.schedule);
  schedule[kLr] = 0.0;
  const bool is_untouched = state.lr_scheduler == schedule;  // the checkpoint has no trainer state
  if (!is_untouched && !state.lr_scheduler.empty()) return true;
  if (state.global_step > 0) schedule[kLr] = options_.schedule.At(state.global_step);
  state.lr_scheduler = schedule;
  const auto data = DataState(text_, options_.seed);
  const bool knows_data = std::any_of(data.begin(), data.end(), [&](const auto& entry) {
    return state.extra.contains(entry.first);
  });
  if (!knows_data) state.extra.insert(data.begin(), data.end());
  return !state.rng.empty();
}

varve::Status Trainer::Resume(const Loaded& loaded) {
  const bool has_generator = AdoptForeignState() && loaded.generator;
  const varve::TrainerProgress& state = state_.trainer;
  auto schedule = ScheduleState(options_.schedule);
  schedule[kLr] = state.global_step == 0 ? 0 : options_.schedule.At(state.global_step);
  VARVE_RETURN_IF_ERROR(CheckSame("the schedule", schedule, state.lr_scheduler));
  VARVE_RETURN_IF_ERROR(CheckSame("the data", DataState(text_, options_.seed), state.extra));
  if (has_generator) {
    VARVE_ASSIGN_OR_RETURN(rng_, ParseRng(state));
  } else {
    rng_.seed(varve::DerivedSeed(state.consumed_samples, 0));  // all ranks draw the same
    state_.trainer.rng = RngStates(rng_);
  }
  UpdateModel();
  const bool makes_masters = !loaded.optimizer && !master_.empty();
  if (makes_masters) std::ranges::copy(SliceOf(model_.params()), master_.begin());
  return varve::Status::Ok();
}

}  // namespace gpt
