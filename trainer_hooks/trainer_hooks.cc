// SPDX-License-Identifier: Apache-2.0
#include "varve/trainer_hooks.h"

#include <algorithm>
#include <cstdio>

#include "store/step_expr.h"
#include "trainer_hooks/state_bytes.h"
#include "trainer_hooks/stop_signal.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

bool IsSameFolder(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

void Print(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

class TrainerHooksImpl : public TrainerHooks {
 public:
  TrainerHooksImpl(const CheckpointFlags& flags, const HooksOptions& options)
      : flags_(flags), options_(options), log_(options.log ? options.log : Print) {}
  ~TrainerHooksImpl() override {
    const Status status = TrainerHooksImpl::Finish();
    if (!status.ok()) log_("varve: " + status.ToString());
  }

  Status StartWith(TrainingState* state);

  const std::optional<LoadReport>& loaded() const override { return loaded_; }
  Status BeforeOptimizerStep() override {
    return checkpointer_ != nullptr ? checkpointer_->AwaitStaged() : Status::Ok();
  }
  Result<bool> AfterStep(const TrainingState& state, bool is_last) override;
  StopReason stop_reason() const override { return stop_reason_; }
  Status Finish() override;
  AsyncCheckpointer* checkpointer() override { return checkpointer_.get(); }

 private:
  Status OpenCheckpointer();
  Status Load(TrainingState* state);
  Status NothingToLoad(const Status& status) const;
  Result<LoadReport> LoadFrom(const Store& store, const CheckpointId& id,
                              TrainingState* state) const;
  LoadOptions MakeLoadOptions() const;
  std::string StepToLoad() const;
  Status CheckLineage(const TrainingState& state);
  Status CheckSpace(const TrainingState& state);
  void LogLoad() const;
  TrainingState WhatToSave(const TrainingState& state) const;
  StopReason FindStopReason(uint64_t step, bool is_last) const;
  Status Save(uint64_t step, const TrainingState& state);

  const CheckpointFlags flags_;
  const HooksOptions options_;
  const std::function<void(const std::string&)> log_;
  const Clock::time_point started_ = Clock::now();
  std::unique_ptr<AsyncCheckpointer> checkpointer_;
  std::optional<LoadReport> loaded_;
  bool goes_on_ = false;  // in the run that was loaded from
  std::optional<uint64_t> last_saved_;
  std::optional<StopSignal> signal_;
  StopReason stop_reason_ = StopReason::kNone;
};

Status TrainerHooksImpl::StartWith(TrainingState* state) {
  VARVE_RETURN_IF_ERROR(ValidateFlags(flags_));
  if (!flags_.save.empty()) VARVE_RETURN_IF_ERROR(OpenCheckpointer());
  if (!flags_.load.empty()) VARVE_RETURN_IF_ERROR(Load(state));
  if (checkpointer_ == nullptr) return Status::Ok();
  VARVE_RETURN_IF_ERROR(CheckLineage(*state));
  const TrainingState saved = WhatToSave(*state);
  VARVE_RETURN_IF_ERROR(CheckSpace(saved));
  VARVE_RETURN_IF_ERROR(checkpointer_->Prewarm(saved));
  signal_.emplace();
  return Status::Ok();
}

Status TrainerHooksImpl::OpenCheckpointer() {
  CheckpointerOptions options = options_.checkpointer;
  options.run = flags_.run;
  options.retention = RetentionOf(flags_);
  if (options.on_save == nullptr) {
    options.on_save = [log = log_](const SaveMetrics& metrics) { log(ToString(metrics)); };
  }
  VARVE_ASSIGN_OR_RETURN(checkpointer_, AsyncCheckpointer::Open(flags_.save, options));
  return Status::Ok();
}

LoadOptions TrainerHooksImpl::MakeLoadOptions() const {
  LoadOptions options = options_.load;
  options.strictness = flags_.strictness;
  options.optimizer = flags_.load_optim && !flags_.finetune;
  if (flags_.finetune) options.lr_scheduler = options.trainer_state = false;
  return options;
}

Status TrainerHooksImpl::Load(TrainingState* state) {
  const bool is_own_store = checkpointer_ != nullptr && IsSameFolder(flags_.load, flags_.save);
  std::unique_ptr<Store> other;
  if (!is_own_store) {
    auto opened = Store::OpenForReading(flags_.load);
    if (!opened.ok()) return NothingToLoad(opened.status());
    other = *std::move(opened);
  }
  const Store& store = is_own_store ? checkpointer_->store() : *other;
  const Result<CheckpointId> id = ResolveStep(store, StepToLoad());
  if (!id.ok()) return NothingToLoad(id.status());
  goes_on_ = is_own_store && id->run == flags_.run && !flags_.finetune;
  Result<LoadReport> report =
      goes_on_ ? checkpointer_->Restore(std::to_string(id->step), MakeLoadOptions(), state)
               : LoadFrom(store, *id, state);
  if (!report.ok()) return report.status().WithContext("--load " + flags_.load);
  loaded_ = *std::move(report);
  // A checkpoint without trainer state, an imported one say, still is of a step.
  if (!flags_.finetune && state->trainer.global_step == 0) {
    state->trainer.global_step = static_cast<int64_t>(id->step);
  }
  LogLoad();
  return Status::Ok();
}

// A job may be started again and again with one command line, from the first time on; but a step that
// somebody names must be there, and what is to be tuned.
Status TrainerHooksImpl::NothingToLoad(const Status& status) const {
  const bool may_be_missing =
      flags_.ckpt_step.empty() && !flags_.exit_on_missing_checkpoint && !flags_.finetune;
  if (status.code() != StatusCode::kNotFound || !may_be_missing) {
    return status.WithContext("--load " + flags_.load);
  }
  log_("nothing to load from " + flags_.load + ": starting afresh");
  return Status::Ok();
}

Result<LoadReport> TrainerHooksImpl::LoadFrom(const Store& store, const CheckpointId& id,
                                              TrainingState* state) const {
  VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(id.run, id.step));
  return LoadState(*reader, MakeLoadOptions(), state);
}

// "RUN@STEP"; the run is that of --run unless --ckpt-step names another.
std::string TrainerHooksImpl::StepToLoad() const {
  const std::string step = flags_.ckpt_step.empty() ? "latest" : flags_.ckpt_step;
  return step.find('@') != std::string::npos ? step : flags_.run + "@" + step;
}

void TrainerHooksImpl::LogLoad() const {
  log_("loaded step " + std::to_string(loaded_->id.step) + " of run " + loaded_->id.run + " from " +
       flags_.load + ": " + std::to_string(loaded_->num_tensors) + " tensors, " +
       std::to_string(loaded_->bytes) + " bytes");
  const auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    constexpr size_t kShown = 5;
    std::string line = std::to_string(names.size()) + " " + what + ":";
    for (size_t i = 0; i < std::min(names.size(), kShown); ++i) line += " " + names[i];
    if (names.size() > kShown) line += " ...";
    log_(line);
  };
  list("missing", loaded_->missing);
  list("unexpected", loaded_->unexpected);
  list("converted", loaded_->converted);
  list("made from their partners", loaded_->made);
}

// A run is one line of training: it goes on from a step of its own, or begins.
Status TrainerHooksImpl::CheckLineage(const TrainingState& state) {
  const auto begin = static_cast<uint64_t>(state.trainer.global_step);
  const std::string where = "run " + flags_.run + " of " + flags_.save;
  if (goes_on_) {
    if (begin == loaded_->id.step) return Status::Ok();
    return Status::FailedPrecondition(where + " was loaded at step " +
                                      std::to_string(loaded_->id.step) +
                                      ", but the trainer's global_step is " + std::to_string(begin));
  }
  const auto newest = checkpointer_->store().LatestStep(flags_.run);
  if (newest.status().code() == StatusCode::kNotFound) return Status::Ok();
  VARVE_RETURN_IF_ERROR(newest.status());
  if (!newest->has_value()) return Status::Ok();
  return Status::FailedPrecondition(
      where + " has steps up to " + std::to_string(**newest) + ", and this training begins at step " +
      std::to_string(begin) + ": go on from there with --load " + flags_.save +
      ", or choose another --run or --save");
}

Status TrainerHooksImpl::CheckSpace(const TrainingState& state) {
  std::error_code error;
  const auto space = std::filesystem::space(flags_.save, error);
  if (error) return Status::IOError("--save " + flags_.save + ": " + error.message());
  // The next checkpoint is about as large as the last; the first, at most as the state.
  uint64_t needed = StateBytes(state);
  if (goes_on_) {
    VARVE_ASSIGN_OR_RETURN(const auto steps, checkpointer_->store().ListCheckpoints(flags_.run));
    needed = steps.back().stored_bytes;
  }
  if (space.available >= needed) return Status::Ok();
  return Status::IOError("--save " + flags_.save + ": the next checkpoint needs about " +
                         std::to_string(needed) + " bytes, and only " +
                         std::to_string(space.available) + " are free");
}

TrainingState TrainerHooksImpl::WhatToSave(const TrainingState& state) const {
  TrainingState saved = state;
  if (!flags_.save_optim) {
    std::erase_if(saved.tensors, [](const StateTensor& tensor) {
      return tensor.role == TensorRole::kOptimizer;
    });
  }
  return saved;
}

StopReason TrainerHooksImpl::FindStopReason(uint64_t step, bool is_last) const {
  if (is_last) return StopReason::kLastStep;
  if (signal_.has_value() && signal_->received().has_value()) return StopReason::kSignal;
  if (flags_.exit_interval.has_value() && step % *flags_.exit_interval == 0) {
    return StopReason::kExitInterval;
  }
  const double minutes = std::chrono::duration<double>(Clock::now() - started_).count() / 60;
  const bool is_over =
      flags_.exit_duration_in_mins.has_value() && minutes > *flags_.exit_duration_in_mins;
  return is_over ? StopReason::kExitDuration : StopReason::kNone;
}

Result<bool> TrainerHooksImpl::AfterStep(const TrainingState& state, bool is_last) {
  if (state.trainer.global_step < 0) {
    return Status::InvalidArgument("global_step is " + std::to_string(state.trainer.global_step) +
                                   ", expected the number of steps done");
  }
  const auto step = static_cast<uint64_t>(state.trainer.global_step);
  stop_reason_ = FindStopReason(step, is_last);
  const bool stops = stop_reason_ != StopReason::kNone;
  if (checkpointer_ == nullptr) return stops;
  const bool is_due = stops || step % *flags_.save_interval == 0;
  if (is_due && last_saved_ != step) VARVE_RETURN_IF_ERROR(Save(step, state));
  if (!stops) return false;
  VARVE_RETURN_IF_ERROR(checkpointer_->Wait());
  const auto metrics = checkpointer_->last_metrics();  // of a failure that is not fatal
  if (metrics.has_value() && metrics->step == step) VARVE_RETURN_IF_ERROR(metrics->status);
  return true;
}

Status TrainerHooksImpl::Save(uint64_t step, const TrainingState& state) {
  const bool stops = stop_reason_ != StopReason::kNone;
  // The last save is never skipped because of the one before it.
  if (stops || !flags_.async_save) VARVE_RETURN_IF_ERROR(checkpointer_->Wait());
  BeginOptions options;
  if (stop_reason_ == StopReason::kSignal && flags_.exit_deadline_in_secs.has_value()) {
    options.deadline =
        *signal_->received() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(*flags_.exit_deadline_in_secs));
  }
  VARVE_ASSIGN_OR_RETURN(const bool is_saving,
                         checkpointer_->BeginSave(step, WhatToSave(state), options));
  if (is_saving) last_saved_ = step;
  return flags_.async_save ? Status::Ok() : checkpointer_->Wait();
}

Status TrainerHooksImpl::Finish() {
  const Status status = checkpointer_ != nullptr ? checkpointer_->Close() : Status::Ok();
  signal_.reset();  // a signal that comes before must not end the last save
  return status;
}

}  // namespace

Result<std::unique_ptr<TrainerHooks>> TrainerHooks::Start(const CheckpointFlags& flags,
                                                          TrainingState* state,
                                                          const HooksOptions& options) {
  auto hooks = std::make_unique<TrainerHooksImpl>(flags, options);
  VARVE_RETURN_IF_ERROR(hooks->StartWith(state));
  return std::unique_ptr<TrainerHooks>(std::move(hooks));
}

}  // namespace varve
