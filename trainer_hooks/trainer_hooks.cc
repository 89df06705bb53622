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

// Of a step: "RUN@STEP".
bool NamesRun(const std::string& step) { return step.find('@') != std::string::npos; }

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
  bool LoadsOwnRun() const;
  Result<LoadReport> LoadFromElsewhere(TrainingState* state);
  LoadOptions MakeLoadOptions() const;
  std::string StepToLoad() const { return flags_.ckpt_step.empty() ? "latest" : flags_.ckpt_step; }
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
  Result<LoadReport> report = LoadsOwnRun()
                                  ? checkpointer_->Restore(StepToLoad(), MakeLoadOptions(), state)
                                  : LoadFromElsewhere(state);
  // A job may be started again and again with one command line, from the first time on; but a step
  // that somebody names must be there.
  const bool is_missing = report.status().code() == StatusCode::kNotFound;
  if (is_missing && flags_.ckpt_step.empty() && !flags_.exit_on_missing_checkpoint) {
    log_("nothing to load from " + flags_.load + ": starting afresh");
    return Status::Ok();
  }
  if (!report.ok()) return report.status().WithContext("--load " + flags_.load);
  loaded_ = *std::move(report);
  // A checkpoint without trainer state, an imported one say, still is of a step.
  if (!flags_.finetune && state->trainer.global_step == 0) {
    state->trainer.global_step = static_cast<int64_t>(loaded_->id.step);
  }
  LogLoad();
  return Status::Ok();
}

// Whether the training goes on in the run that it is loaded from.
bool TrainerHooksImpl::LoadsOwnRun() const {
  return checkpointer_ != nullptr && !NamesRun(flags_.ckpt_step) &&
         IsSameFolder(flags_.load, flags_.save);
}

Result<LoadReport> TrainerHooksImpl::LoadFromElsewhere(TrainingState* state) {
  VARVE_ASSIGN_OR_RETURN(const auto store, Store::OpenForReading(flags_.load));
  const std::string step = NamesRun(StepToLoad()) ? StepToLoad() : flags_.run + "@" + StepToLoad();
  VARVE_ASSIGN_OR_RETURN(const auto id, ResolveStep(*store, step));
  VARVE_ASSIGN_OR_RETURN(const auto reader, store->OpenCheckpoint(id.run, id.step));
  return LoadState(*reader, MakeLoadOptions(), state);
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

// Steps that were not gone back behind must not be newer than where the training begins.
Status TrainerHooksImpl::CheckLineage(const TrainingState& state) {
  if (loaded_.has_value() && LoadsOwnRun() && !flags_.finetune) return Status::Ok();
  const auto newest = checkpointer_->store().LatestStep(flags_.run);
  if (newest.status().code() == StatusCode::kNotFound) return Status::Ok();
  VARVE_RETURN_IF_ERROR(newest.status());
  const auto begin = static_cast<uint64_t>(state.trainer.global_step);
  if (!newest->has_value() || **newest <= begin) return Status::Ok();
  return Status::FailedPrecondition(
      "run " + flags_.run + " of " + flags_.save + " has steps up to " + std::to_string(**newest) +
      ", and this training begins at step " + std::to_string(begin) + ": go on from there with --load " +
      flags_.save + ", or choose another --run or --save");
}

Status TrainerHooksImpl::CheckSpace(const TrainingState& state) {
  std::error_code error;
  const auto space = std::filesystem::space(flags_.save, error);
  if (error) return Status::IOError("--save " + flags_.save + ": " + error.message());
  const auto stats = checkpointer_->store().Stats();
  VARVE_RETURN_IF_ERROR(stats.status());
  const uint64_t needed = stats->num_steps == 0 ? StateBytes(state) : 0;
  if (space.available >= needed) return Status::Ok();
  return Status::IOError("--save " + flags_.save + ": the first checkpoint needs up to " +
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
  const bool is_over = flags_.exit_duration_in_mins.has_value() && minutes > *flags_.exit_duration_in_mins;
  return is_over ? StopReason::kExitDuration : StopReason::kNone;
}

Result<bool> TrainerHooksImpl::AfterStep(const TrainingState& state, bool is_last) {
  const auto step = static_cast<uint64_t>(state.trainer.global_step);
  stop_reason_ = FindStopReason(step, is_last);
  const bool stops = stop_reason_ != StopReason::kNone;
  if (checkpointer_ == nullptr) return stops;
  const bool is_due = stops || step % *flags_.save_interval == 0;
  if (is_due && last_saved_ != step) VARVE_RETURN_IF_ERROR(Save(step, state));
  if (stops) VARVE_RETURN_IF_ERROR(checkpointer_->Wait());
  return stops;
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
  signal_.reset();
  return checkpointer_ != nullptr ? checkpointer_->Close() : Status::Ok();
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
