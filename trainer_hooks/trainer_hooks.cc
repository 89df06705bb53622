// SPDX-License-Identifier: Apache-2.0
//
// One rank is a group of one, which agrees with itself. It differs only in its store, which belongs
// to no group. Every decision here must be the same on all ranks. Otherwise one rank would wait
// where the others do not come.
#include "varve/trainer_hooks.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <sstream>

#include "base/seconds_since.h"
#include "base/util.h"
#include "trainer_hooks/group/agree.h"
#include "trainer_hooks/group/load_together.h"
#include "trainer_hooks/save/free_space.h"
#include "trainer_hooks/state/save_state.h"
#include "trainer_hooks/state/state_bytes.h"
#include "trainer_hooks/stop_signal.h"
#include "varve/group.h"
#include "varve/group_checkpointer.h"
#include "varve/step.h"

namespace varve {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

bool IsSameFolder(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

void Print(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }
void Hush(const std::string& /*line*/) {}

// Returns the flags that all ranks follow, one a line. The other flags are for rank 0, which
// decides for all. Folders are not compared, because they may have other paths on other machines.
std::string FlagsInCommon(const CheckpointFlags& flags) {
  const auto line = [](const std::string& flag, bool is_given) {
    return flag + (is_given ? " given\n" : " not given\n");
  };
  return line("--save", !flags.save.empty()) + line("--remote", !flags.remote.empty()) +
         line("--load", !flags.load.empty()) + "--run " + flags.run + "\n" +
         line("--ckpt-step", !flags.ckpt_step.empty()) +
         line("--exit-on-missing-checkpoint", flags.exit_on_missing_checkpoint) +
         line("--no-save-optim", !flags.save_optim) + line("--no-load-optim", !flags.load_optim) +
         line("--no-async-save", !flags.async_save) + line("--finetune", flags.finetune) +
         "--dist-ckpt-strictness " + std::string(StrictnessName(flags.strictness)) + "\n";
}

// kInvalidArgument names the first flag whose value differs between two ranks. Collective.
Status CompareFlags(RankGroup* ranks, const CheckpointFlags& flags) {
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks->AllGather(AsBytes(FlagsInCommon(flags))));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first{std::string(AsString(all[0]))};
    std::istringstream other{std::string(AsString(all[rank]))};
    std::string a, b;
    while (a == b && std::getline(first, a) && std::getline(other, b)) {
    }
    return Status::InvalidArgument("flags of ranks differ: rank 0 has " + a + ", rank " +
                                   std::to_string(rank) + " has " + b);
  }
  return Status::Ok();
}

// What happens at the end of a step.
struct Decision {
  uint64_t step = 0;
  StopReason stop = StopReason::kNone;
  bool saves = false;
  std::optional<Clock::time_point> signalled;  // the first signal, on any rank
};

class TrainerHooksImpl : public TrainerHooks {
 public:
  TrainerHooksImpl(const CheckpointFlags& flags, const HooksOptions& options)
      : flags_(flags),
        options_(options),
        alone_(options.ranks == nullptr ? std::move(ThreadRanks(1)[0]) : nullptr),
        ranks_(options.ranks == nullptr ? alone_.get() : options.ranks),
        log_(options.log ? options.log
             : IsFirst() ? Print
                         : Hush) {}

  Status StartWith(TrainingState* state);

  const std::optional<LoadReport>& loaded() const override { return loaded_; }
  Status BeforeOptimizerStep() override {
    return checkpointer_ != nullptr ? checkpointer_->AwaitStaged() : Status::Ok();
  }
  Result<bool> WillSave(int64_t step, bool is_last) override;
  Result<bool> AfterStep(const TrainingState& state, bool is_last) override;
  StopReason stop_reason() const override { return stop_reason_; }
  Status Finish() override;
  AsyncCheckpointer* checkpointer() override { return checkpointer_.get(); }

 private:
  bool IsFirst() const { return ranks_->rank() == 0; }
  // Returns the time from the flag, or else from the options.
  std::optional<std::chrono::milliseconds> RankTimeout() const {
    if (!flags_.rank_timeout_in_secs.has_value()) return options_.checkpointer.timeout;
    return std::chrono::ceil<std::chrono::milliseconds>(
        std::chrono::duration<double>(*flags_.rank_timeout_in_secs));
  }
  Status OpenCheckpointer();
  Status Load(TrainingState* state);
  Status NothingToLoad(const Status& status) const;
  Result<CheckpointId> FindStepToLoad(const Store& store) const;
  Result<LoadReport> LoadFrom(const Store& store, const CheckpointId& id,
                              TrainingState* state) const;
  LoadOptions MakeLoadOptions() const;
  std::string StepToLoad() const;
  Status CheckLineage(const TrainingState& state);
  Status CheckSpace(const TrainingState& state);
  void LogLoad() const;
  const TrainingState& WhatToSave(const TrainingState& state, TrainingState* part) const;
  StopReason OwnStopReason(int64_t step, bool is_last) const;
  Result<Decision> Decide(int64_t step, bool is_last, Status failure) const;
  Status Save(const Decision& decision, const TrainingState& state);

  const CheckpointFlags flags_;
  const HooksOptions options_;
  const std::unique_ptr<RankGroup> alone_;
  RankGroup* const ranks_;
  const std::function<void(const std::string&)> log_;
  const Clock::time_point started_ = Clock::now();
  std::optional<StopSignal> signal_;  // outlives the checkpointer: none ends the last save
  std::unique_ptr<AsyncCheckpointer> checkpointer_;
  std::optional<LoadReport> loaded_;
  bool goes_on_ = false;  // in the run that was loaded from
  std::optional<uint64_t> last_saved_;
  std::optional<Decision> promised_;  // by WillSave, about the step that comes
  StopReason stop_reason_ = StopReason::kNone;
};

Status TrainerHooksImpl::StartWith(TrainingState* state) {
  const auto timeout = RankTimeout();
  if (timeout.has_value()) ranks_->set_timeout(*timeout);
  VARVE_RETURN_IF_ERROR(Agree(ranks_, ValidateFlags(flags_)));
  VARVE_RETURN_IF_ERROR(CompareFlags(ranks_, flags_));
  if (!flags_.save.empty()) VARVE_RETURN_IF_ERROR(OpenCheckpointer());
  if (!flags_.load.empty()) VARVE_RETURN_IF_ERROR(Load(state));
  if (checkpointer_ == nullptr) return Status::Ok();
  TrainingState part;
  const TrainingState& saved = WhatToSave(*state, &part);
  Status ready = CheckLineage(*state);
  if (ready.ok()) ready = CheckSpace(saved);
  VARVE_RETURN_IF_ERROR(Agree(ranks_, ready));
  VARVE_RETURN_IF_ERROR(checkpointer_->Prewarm(saved));
  signal_.emplace();
  return Status::Ok();
}

Status TrainerHooksImpl::OpenCheckpointer() {
  CheckpointerOptions options = options_.checkpointer;
  options.run = flags_.run;
  options.retention = RetentionOf(flags_);
  options.timeout = RankTimeout();
  if (options.on_save == nullptr) {
    options.on_save = [log = log_](const SaveStats& stats) { log(ToString(stats)); };
  }
  if (!flags_.remote.empty()) {
    if (!options.remote.has_value()) options.remote.emplace();
    options.remote->url = flags_.remote;
    options.remote->interval = flags_.remote_interval;
    options.remote->keep = flags_.remote_keep;
  }
  if (options.remote.has_value() && options.remote->on_push == nullptr) {
    options.remote->on_push = [log = log_](const PushStats& stats) { log(ToString(stats)); };
  }
  // A single rank needs no group, but it can continue where many have stopped.
  const bool is_group = ranks_->size() > 1 || Group::IsRoot(flags_.save);
  VARVE_ASSIGN_OR_RETURN(checkpointer_, is_group
                                            ? OpenGroupCheckpointer(flags_.save, ranks_, options)
                                            : AsyncCheckpointer::Open(flags_.save, options));
  return Status::Ok();
}

LoadOptions TrainerHooksImpl::MakeLoadOptions() const {
  LoadOptions options = options_.load;
  options.strictness = flags_.strictness;
  options.optimizer = flags_.load_optim && !flags_.finetune;
  if (options.devices == nullptr) options.devices = options_.checkpointer.devices;
  if (flags_.finetune) options.lr_scheduler = options.trainer_state = false;
  return options;
}

Status TrainerHooksImpl::Load(TrainingState* state) {
  VARVE_ASSIGN_OR_RETURN(const bool is_own_store,
                         IsTrueOnAny(ranks_, IsFirst() && checkpointer_ != nullptr &&
                                                 IsSameFolder(flags_.load, flags_.save)));
  std::unique_ptr<Store> other;
  if (!is_own_store) {
    auto opened = Store::OpenForReading(flags_.load);
    const Status status = Agree(ranks_, opened.status());
    // There is nothing to load only if no rank finds the store. If some find it, an error of the
    // others fails the start.
    VARVE_ASSIGN_OR_RETURN(const bool is_somewhere,
                           IsTrueOnAny(ranks_, opened.status().code() != StatusCode::kNotFound));
    if (!is_somewhere) return NothingToLoad(status);
    if (!status.ok()) return status.WithContext("--load " + flags_.load);
    other = *std::move(opened);
  }
  const Store& store = is_own_store ? checkpointer_->store() : *other;
  const Result<CheckpointId> id = FindStepToLoad(store);
  if (!id.ok()) return NothingToLoad(id.status());
  goes_on_ = is_own_store && id->run == flags_.run && !flags_.finetune;
  Result<LoadReport> report = goes_on_ ? checkpointer_->Restore(*id, MakeLoadOptions(), state)
                                       : LoadFrom(store, *id, state);
  if (!report.ok()) return report.status().WithContext("--load " + flags_.load);
  loaded_ = *std::move(report);
  // A checkpoint without trainer state, such as an imported one, still belongs to a step.
  if (!flags_.finetune && state->trainer.global_step == 0) {
    state->trainer.global_step = static_cast<int64_t>(id->step);
  }
  if (goes_on_) last_saved_ = id->step;
  LogLoad();
  return Status::Ok();
}

// A job may be started again and again with one command line, from the first time on. But a step
// that somebody names must exist, and so must a checkpoint to fine-tune from.
Status TrainerHooksImpl::NothingToLoad(const Status& status) const {
  const bool may_be_missing =
      flags_.ckpt_step.empty() && !flags_.exit_on_missing_checkpoint && !flags_.finetune;
  if (status.code() != StatusCode::kNotFound || !may_be_missing) {
    return status.WithContext("--load " + flags_.load);
  }
  log_("nothing to load from " + flags_.load + ": starting afresh");
  return Status::Ok();
}

// Rank 0 decides which step it is, and the others follow.
Result<CheckpointId> TrainerHooksImpl::FindStepToLoad(const Store& store) const {
  return StepFromRankZero(ranks_, [&] { return store.Resolve(StepToLoad()); });
}

// Loads from a step of another training, which this one does not go back to.
Result<LoadReport> TrainerHooksImpl::LoadFrom(const Store& store, const CheckpointId& id,
                                              TrainingState* state) const {
  const auto load = [&](const LoadOptions& options, RegionReader* read) -> Result<LoadReport> {
    VARVE_ASSIGN_OR_RETURN(const auto reader, store.OpenCheckpoint(id.run, id.step));
    return LoadThrough(*reader, options, read, state);
  };
  return LoadTogether(ranks_, MakeLoadOptions(), *state, load);
}

// Returns "RUN@STEP". The run is that of --run, unless --ckpt-step names another.
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
    for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
      line += (i == 0 ? " " : ", ") + names[i];
    }
    if (names.size() > kShown) line += ", ...";
    log_(line);
  };
  list("missing", loaded_->missing);
  list("unexpected", loaded_->unexpected);
  list("converted", loaded_->converted);
  list("made from their partners", loaded_->made);
  list("left out as the number of ranks has changed", loaded_->dropped);
}

// A run is a named sequence of checkpoints of one training. The training continues from a step of
// the run, or starts it.
Status TrainerHooksImpl::CheckLineage(const TrainingState& state) {
  const auto begin = static_cast<uint64_t>(state.trainer.global_step);
  const std::string where = "run " + flags_.run + " of " + flags_.save;
  if (goes_on_) {
    if (begin == loaded_->id.step) return Status::Ok();
    return Status::FailedPrecondition(
        where + " was loaded at step " + std::to_string(loaded_->id.step) +
        ", but the trainer's global_step is " + std::to_string(begin));
  }
  const auto newest = checkpointer_->store().LatestStep(flags_.run);
  if (newest.status().code() == StatusCode::kNotFound) return Status::Ok();
  VARVE_RETURN_IF_ERROR(newest.status());
  if (!newest->has_value()) return Status::Ok();
  return Status::FailedPrecondition(where + " has steps up to " + std::to_string(**newest) +
                                    ", and this training starts at step " + std::to_string(begin) +
                                    ": go on from there with --load " + flags_.save +
                                    ", or choose another --run or --save");
}

Status TrainerHooksImpl::CheckSpace(const TrainingState& state) {
  // The next checkpoint is about as large as the one that was loaded, which is that of all ranks.
  // The first checkpoint is at most as large as the state. So is the first after a fork, because a
  // fork stores nothing. Each rank knows the size of its own state.
  const bool is_known = goes_on_ && loaded_->stored_bytes > 0;
  const uint64_t needed = is_known ? loaded_->stored_bytes : StateBytes(state.tensors);
  return CheckFreeSpace(flags_.save, "--save " + flags_.save, "the next checkpoint", needed);
}

// Returns the state, or `*part`, which gets what is saved when that is not all.
const TrainingState& TrainerHooksImpl::WhatToSave(const TrainingState& state,
                                                  TrainingState* part) const {
  if (flags_.save_optim) return state;
  *part = WithoutTensors(state);
  std::ranges::copy_if(
      state.tensors, std::back_inserter(part->tensors),
      [](const StateTensor& tensor) { return tensor.role != TensorRole::kOptimizer; });
  return *part;
}

// Returns the reason to stop that this rank knows, without signals and the like from outside.
StopReason TrainerHooksImpl::OwnStopReason(int64_t step, bool is_last) const {
  if (is_last) return StopReason::kLastStep;
  if (flags_.exit_interval.has_value() &&
      static_cast<uint64_t>(step) % *flags_.exit_interval == 0) {
    return StopReason::kExitInterval;
  }
  const double minutes = SecondsSince(started_) / 60;
  const bool is_over =
      flags_.exit_duration_in_mins.has_value() && minutes > *flags_.exit_duration_in_mins;
  return is_over ? StopReason::kExitDuration : StopReason::kNone;
}

// Rank 0 decides, except about signals and failed saves, which may come to any rank. The others
// leave rank 0's values at 0. At a step that saves nothing, ranks exchange only this.
Result<Decision> TrainerHooksImpl::Decide(int64_t step, bool is_last, Status failure) const {
  int64_t own_stop = 0, is_due = 0, since_signal = 0;  // in nanoseconds. 0 = there was none
  if (failure.ok() && checkpointer_ != nullptr) failure = checkpointer_->failure();
  if (IsFirst()) {
    own_stop = static_cast<int64_t>(OwnStopReason(step, is_last));
    const auto interval =
        static_cast<int64_t>(flags_.durable_every_step ? 1 : flags_.save_interval.value_or(0));
    is_due = interval > 0 && step % interval == 0 ? 1 : 0;
  }
  const auto received = signal_.has_value() ? signal_->received() : std::nullopt;
  if (received.has_value()) since_signal = std::max<int64_t>(1, (Clock::now() - *received).count());
  const int64_t mine[] = {step, -step, own_stop, is_due, since_signal, failure.ok() ? 0 : 1};
  VARVE_ASSIGN_OR_RETURN(const auto all, ranks_->AllReduce(mine, Reduction::kMax));
  if (all[0] != -all[1]) {
    return Status::FailedPrecondition("global_step is " + std::to_string(-all[1]) +
                                      " on one rank and " + std::to_string(all[0]) +
                                      " on another, expected the same");
  }
  if (all[5] > 0) return Agree(ranks_, failure);
  if (step < 0) {
    return Status::InvalidArgument("global_step is " + std::to_string(step) +
                                   ", expected the number of steps done");
  }
  Decision decision{.step = static_cast<uint64_t>(step), .stop = static_cast<StopReason>(all[2])};
  if (all[4] > 0) {
    decision.signalled = Clock::now() - Clock::duration(all[4]);
    if (decision.stop != StopReason::kLastStep) decision.stop = StopReason::kSignal;
  }
  decision.saves = decision.stop != StopReason::kNone || all[3] > 0;
  return decision;
}

// Ranks that have promised have agreed on the step, and on what it does.
Result<bool> TrainerHooksImpl::WillSave(int64_t step, bool is_last) {
  VARVE_ASSIGN_OR_RETURN(promised_, Decide(step, is_last, Status::Ok()));
  return checkpointer_ != nullptr && promised_->saves && last_saved_ != promised_->step;
}

Result<bool> TrainerHooksImpl::AfterStep(const TrainingState& state, bool is_last) {
  // An optimizer step has happened since. A save that was not awaited before it may mix two steps.
  const Status awaited = checkpointer_ != nullptr ? checkpointer_->RequireAwaited() : Status::Ok();
  VARVE_ASSIGN_OR_RETURN(Decision decision, Decide(state.trainer.global_step, is_last, awaited));
  const bool is_promised = promised_.has_value() && promised_->step == decision.step;
  if (is_promised && decision.stop != StopReason::kLastStep) decision = *promised_;
  promised_.reset();
  stop_reason_ = decision.stop;
  const bool stops = stop_reason_ != StopReason::kNone;
  if (checkpointer_ == nullptr) return stops;
  if (decision.saves && last_saved_ != decision.step) {
    VARVE_RETURN_IF_ERROR(Save(decision, state));
  }
  if (!stops) return false;
  VARVE_RETURN_IF_ERROR(checkpointer_->Wait());
  const auto metrics = checkpointer_->last_stats();  // of a failure that is not fatal
  const bool is_of_this = metrics.has_value() && metrics->step == decision.step;
  VARVE_RETURN_IF_ERROR(Agree(ranks_, is_of_this ? metrics->status : Status::Ok()));
  return true;
}

Status TrainerHooksImpl::Save(const Decision& decision, const TrainingState& state) {
  const bool stops = decision.stop != StopReason::kNone;
  // The last save is never skipped because of an earlier one.
  if (stops || !flags_.async_save) VARVE_RETURN_IF_ERROR(checkpointer_->Wait());
  BeginOptions options;
  if (decision.stop == StopReason::kSignal && flags_.exit_deadline_in_secs.has_value()) {
    options.deadline =
        *decision.signalled + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(*flags_.exit_deadline_in_secs));
  }
  TrainingState part;
  VARVE_ASSIGN_OR_RETURN(
      const bool is_saving,
      checkpointer_->BeginSave(decision.step, WhatToSave(state, &part), options));
  if (is_saving) last_saved_ = decision.step;
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
