// SPDX-License-Identifier: Apache-2.0
//
// A save on its threads:
//
//   trainer   BeginSave ──► forward, backward ──► AwaitStaged ──► optimizer step, next steps ...
//                 │                                   ▲ helps to stage, waits until all is copied
//   preparer      └► prepare ─┬─► digest, copy ───────┤
//   stagers                   └─► digest, copy ───────┤
//   saver                                             └► encode, commit ──► retention ──► report
//
// What lies on devices is digested there from the begin of the save on, while the preparer goes on,
// and copied by the devices when it tells them what has changed.
//
// The saver, and whatever works for it, has low priority: the trainer waits for it only when
// staging is full. The others have the trainer's: it cannot go on before they are done, and would
// otherwise starve them itself.
#include <tbb/info.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>

#include "base/guarded.h"
#include "base/low_priority.h"
#include "base/util.h"
#include "trainer_hooks/save/async_checkpointer_impl.h"
#include "trainer_hooks/state/item_variables.h"
#include "trainer_hooks/state/validate_state.h"
#include "varve/group.h"
#include "varve/step.h"

namespace varve::internal {

namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Turns exceptions of the standard library (out of memory, no thread to be had) into a Status. It
// throws nothing.
template <typename Step>
Status Guarded(uint64_t step_number, const Step& step) {
  try {
    try {
      return step();
    } catch (const std::exception& error) {
      return Status::Unavailable("saving step " + std::to_string(step_number) + ": " +
                                 error.what());
    }
  } catch (const std::exception&) {
    return Status::Unavailable("out of memory");  // short enough to take none
  } catch (...) {
    return Status::Unavailable("an exception");
  }
}

}  // namespace

SaveJob::SaveJob(SaveMemory* memory, uint64_t job_number, uint64_t step_number,
                 std::shared_ptr<const SaveState> from, const BeginOptions& options)
    : number(job_number),
      step(step_number),
      state(std::move(from)),
      deadline(options.deadline),
      waits_at_once(options.waits_at_once),
      stage(memory->staging(), memory->devices(), memory->layout()) {
  stats.step = step;
  stats.num_tensors = state->tensors->tensors.size();
}

AsyncCheckpointerImpl::~AsyncCheckpointerImpl() {
  const Status status = AsyncCheckpointerImpl::Close();
  if (!status.ok() && !is_error_seen_) {
    std::fprintf(stderr, "varve: unreported error: %s\n", status.ToString().c_str());
  }
}

Status AsyncCheckpointerImpl::StartThreads() {
  // The preparer stages, too, unless it waits for devices.
  const int stagers = options_.devices != nullptr ? num_threads_ : num_threads_ - 1;
  try {
    threads_.emplace_back([this](std::stop_token stop) { RunSaver(stop); });
    threads_.emplace_back([this](std::stop_token stop) { RunPreparer(stop); });
    for (int i = 0; i < stagers; ++i) {
      threads_.emplace_back([this](std::stop_token stop) { RunStager(stop); });
    }
  } catch (const std::exception& error) {
    return Status::Unavailable("saves need " + std::to_string(2 + stagers) + " threads, and only " +
                               std::to_string(threads_.size()) + " are to be had: " + error.what());
  }
  return Status::Ok();
}

Status AsyncCheckpointerImpl::RequireOpen() const {
  const std::lock_guard lock(mutex_);
  return is_closed_ ? Status::FailedPrecondition("the checkpointer has been closed") : Status::Ok();
}

// What a call of the trainer has to return of earlier failures.
Status AsyncCheckpointerImpl::SeenError() {
  const Status status = failure();
  const std::lock_guard lock(mutex_);
  if (!status.ok()) is_error_seen_ = true;
  return status;
}

Status AsyncCheckpointerImpl::Prewarm(const TrainingState& state) {
  VARVE_RETURN_IF_ERROR(Wait());
  const std::shared_ptr<const StateTensors> known = KnownTensors(state);
  VARVE_RETURN_IF_ERROR(ValidateState(state, options_.devices.get(), known != nullptr));
  return varve::internal::Guarded("preparing saves", [&] {
    return PrewarmFor(known != nullptr ? known : MakeStateTensors(state.tensors));
  });
}

Status AsyncCheckpointerImpl::PrewarmFor(const std::shared_ptr<const StateTensors>& tensors) {
  VARVE_RETURN_IF_ERROR(Wait());
  VARVE_RETURN_IF_ERROR(memory_.Prewarm(tensors));
  tensors_ = tensors;
  return Status::Ok();
}

// Those of the last save when the state has the same. Null: it has others.
std::shared_ptr<const StateTensors> AsyncCheckpointerImpl::KnownTensors(
    const TrainingState& state) const {
  return tensors_ != nullptr && tensors_->AreOf(state.tensors) ? tensors_ : nullptr;
}

void AsyncCheckpointerImpl::AwaitIdle() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return phase_ == Phase::kIdle; });
}

// False: a save is under way, and the policy is not to wait for it.
bool AsyncCheckpointerImpl::WaitForTurn(double* waited) {
  const auto start = Clock::now();
  if (options_.when_busy == WhenBusy::kSkip && IsBusy()) return false;
  AwaitIdle();
  *waited = Seconds(Clock::now() - start);
  return true;
}

bool AsyncCheckpointerImpl::IsBusy() const {
  const std::lock_guard lock(mutex_);
  return phase_ != Phase::kIdle;
}

void AsyncCheckpointerImpl::Skip(uint64_t step) {
  SaveStats stats{.step = step, .skipped = true};
  if (options_.on_save) options_.on_save(stats);
  step_before_ = step;
  const std::lock_guard lock(mutex_);
  last_stats_ = stats;
}

std::shared_ptr<SaveJob> AsyncCheckpointerImpl::MakeJob(uint64_t step,
                                                        std::shared_ptr<const SaveState> state,
                                                        const BeginOptions& options) {
  auto job = std::make_shared<SaveJob>(&memory_, ++num_jobs_, step, std::move(state), options);
  job->step_before = std::exchange(step_before_, step);
  knows_steps_ = knows_steps_ || job->state->rest.optimizer_step != nullptr;
  job->knows_steps = knows_steps_;
  job->may_commit = [this, job = job.get()] { return AwaitTrainer(*job); };
  if (options_.check_staging > 0) {
    job->check.emplace(job->state, options_.check_staging, job->number);
  }
  return job;
}

Result<bool> AsyncCheckpointerImpl::BeginSave(uint64_t step, const TrainingState& state,
                                              const BeginOptions& options) {
  const auto start = Clock::now();
  VARVE_RETURN_IF_ERROR(RequireAwaited());
  VARVE_RETURN_IF_ERROR(SeenError());
  std::shared_ptr<const StateTensors> tensors = KnownTensors(state);
  VARVE_RETURN_IF_ERROR(ValidateState(state, options_.devices.get(), tensors != nullptr));
  double waited = 0;
  if (!WaitForTurn(&waited)) {
    Skip(step);
    return false;
  }
  if (options.deadline.has_value() && pusher_ != nullptr) pusher_->SetDeadline(*options.deadline);
  std::shared_ptr<SaveState> copy;
  VARVE_RETURN_IF_ERROR(Guarded(step, [&]() -> Status {
    if (tensors == nullptr) tensors = MakeStateTensors(state.tensors);
    copy = MakeSaveState(state, std::move(tensors));
    return ReadVariables(&copy->rest.items);
  }));
  VARVE_RETURN_IF_ERROR(BeginSaveOf(step, std::move(copy), options));
  const std::lock_guard lock(mutex_);
  job_->stats.busy_wait_seconds = waited;
  job_->stats.stall_seconds = Seconds(Clock::now() - start);
  return true;
}

Status AsyncCheckpointerImpl::BeginSaveOf(uint64_t step, std::shared_ptr<const SaveState> state,
                                          const BeginOptions& options) {
  const auto start = Clock::now();
  VARVE_RETURN_IF_ERROR(RequireAwaited());
  AwaitIdle();
  VARVE_RETURN_IF_ERROR(SeenError());
  VARVE_RETURN_IF_ERROR(Guarded(step, [&] { return memory_.Fit(state->tensors); }));
  tensors_ = state->tensors;
  if (memory_.is_on_devices()) VARVE_RETURN_IF_ERROR(options_.devices->MarkBegin());
  std::shared_ptr<SaveJob> job;
  VARVE_RETURN_IF_ERROR(Guarded(step, [&] {
    job = MakeJob(step, std::move(state), options);
    return Status::Ok();
  }));
  job->stats.stall_seconds = Seconds(Clock::now() - start);
  const std::lock_guard lock(mutex_);
  job_ = std::move(job);
  is_awaited_ = false;
  phase_ = Phase::kPreparing;
  wake_.notify_all();
  return Status::Ok();
}

Status AsyncCheckpointerImpl::AwaitStaged() {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  const auto start = Clock::now();
  std::shared_ptr<SaveJob> job;
  {
    std::unique_lock lock(mutex_);
    if (is_awaited_) {
      lock.unlock();
      return SeenError();
    }
    job = job_;
    job->is_awaited = true;
    wake_.wait(lock, [&] { return phase_ != Phase::kPreparing; });
  }
  job->stage.Work();
  job->stage.AwaitCopied().IgnoreError();  // it fails the save
  const Status kept = job->check.has_value() ? job->check->Compare() : Status::Ok();
  Status released;
  if (memory_.is_on_devices()) released = options_.devices->MarkRelease();
  const auto copied = Clock::now();
  job->stage.AwaitReleased();
  const auto end = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    is_awaited_ = true;
    if (job->broken.ok()) {
      job->broken = kept.WithContext("saving step " + std::to_string(job->step));
    }
    if (!job->stage.is_all_staged()) job->stats.staging_wait_seconds = Seconds(end - copied);
    job->stats.stall_seconds += Seconds(end - start);
    job->stats.staged_seconds = Seconds(end - job->begun);
    wake_.notify_all();  // the saver reports
    if (!job->refused.ok()) return job->refused;
    if (!job->broken.ok()) return job->broken;
  }
  const Status seen = SeenError();
  return seen.ok() ? released : seen;
}

Status AsyncCheckpointerImpl::RequireAwaited() {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  {
    const std::lock_guard lock(mutex_);
    if (is_awaited_) return Status::Ok();
    job_->broken = Status::FailedPrecondition(
        "step " + std::to_string(job_->step) +
        " is not saved: AwaitStaged has not been called since its BeginSave, so nothing has kept "
        "its tensors from changing while they were copied. Call AwaitStaged, which is "
        "BeforeOptimizerStep of TrainerHooks, before each optimizer step and whatever else changes "
        "tensors of the state");
  }
  return AwaitStaged();  // until its memory is not read any more
}

Status AsyncCheckpointerImpl::Wait() {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  const Status staged = AwaitStaged();
  AwaitIdle();
  return staged.ok() ? SeenError() : staged;
}

Status AsyncCheckpointerImpl::ReleaseStaging() {
  const Status status = Wait();
  const Status released = memory_.Release();
  return status.ok() ? released : status;
}

Result<LoadReport> AsyncCheckpointerImpl::Restore(std::string_view step, const LoadOptions& options,
                                                  TrainingState* into) {
  VARVE_RETURN_IF_ERROR(Wait());
  VARVE_ASSIGN_OR_RETURN(const CheckpointId id, FindStep(step));
  LoneReader read;
  return RestoreThrough(id, options, &read, into);
}

Result<LoadReport> AsyncCheckpointerImpl::Restore(const CheckpointId& id,
                                                  const LoadOptions& options, TrainingState* into) {
  VARVE_RETURN_IF_ERROR(RequireRun(id, options_.run));
  return Restore(std::to_string(id.step), options, into);
}

Result<LoadReport> AsyncCheckpointerImpl::RestoreThrough(const CheckpointId& id,
                                                         const LoadOptions& options,
                                                         RegionReader* read, TrainingState* into) {
  VARVE_RETURN_IF_ERROR(Wait());
  VARVE_ASSIGN_OR_RETURN(const auto reader, store_->OpenCheckpoint(id.run, id.step));
  LoadOptions with = options;
  if (with.devices == nullptr) with.devices = options_.devices;
  VARVE_ASSIGN_OR_RETURN(LoadReport report, LoadThrough(*reader, with, read, into));
  restored_ = step_before_ = id.step;
  return report;
}

// Returns a step of the store. A step that only the object store has is copied from there first,
// without the chunks that are here.
Result<CheckpointId> AsyncCheckpointerImpl::FindStep(std::string_view step) {
  const auto id = ResolveStepOfRun(*store_, options_.run, step);
  const Status found = id.ok() ? store_->OpenCheckpoint(id->run, id->step).status() : id.status();
  if (found.code() != StatusCode::kNotFound || !options_.remote.has_value()) return id;
  VARVE_ASSIGN_OR_RETURN(const RemoteCheckpoint there,
                         FindInRemote(options_.run, step, *options_.remote));
  VARVE_RETURN_IF_ERROR(there.store->CopyTo(store_.get(), std::span(&there.id, 1)).status());
  return there.id;
}

// After a save that failed or was refused, an earlier checkpoint of the step is not the one that
// the caller means.
Status AsyncCheckpointerImpl::AwaitStep(uint64_t step) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  if (job_ == nullptr || job_->step != step) return Status::Ok();
  VARVE_RETURN_IF_ERROR(Wait());
  return job_->is_committed ? Status::Ok() : job_->status;
}

Status AsyncCheckpointerImpl::SetMetrics(uint64_t step,
                                         const std::map<std::string, double>& metrics) {
  VARVE_RETURN_IF_ERROR(AwaitStep(step));
  return store_->SetMetrics({options_.run, step}, metrics);
}

Status AsyncCheckpointerImpl::SetTag(uint64_t step, std::string_view tag) {
  VARVE_RETURN_IF_ERROR(AwaitStep(step));
  return store_->SetTag({options_.run, step}, tag);
}

Status AsyncCheckpointerImpl::Close() {
  if (!RequireOpen().ok()) return Status::Ok();
  Wait().IgnoreError();  // what it returns is in error_
  threads_.clear();
  memory_.Release().IgnoreError();
  const Status pushed = pusher_ != nullptr ? pusher_->Close() : Status::Ok();
  store_.reset();
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  return error_.ok() ? pushed : error_;
}

std::optional<PushStats> AsyncCheckpointerImpl::last_push() const {
  return pusher_ != nullptr ? pusher_->last() : std::nullopt;
}

std::optional<SaveStats> AsyncCheckpointerImpl::last_stats() const {
  const std::lock_guard lock(mutex_);
  return last_stats_;
}

Status AsyncCheckpointerImpl::failure() const {
  {
    const std::lock_guard lock(mutex_);
    if (options_.failure_is_fatal && !error_.ok()) return error_;
  }
  const bool is_asked = pusher_ != nullptr && options_.remote->failure_is_fatal;
  return is_asked ? pusher_->failure() : Status::Ok();
}

void AsyncCheckpointerImpl::EnterPhase(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  wake_.notify_all();
}

// Lets the trainer go, who then knows of a failure.
void AsyncCheckpointerImpl::Release(SaveJob* job) {
  const Status arrived = Guarded(job->step, [&] { return job->stage.AwaitArrived(); });
  arrived.IgnoreError();  // of a save that failed
  if (job->refused.ok()) NoteError(*job, job->status);
  job->stage.ReleaseAll();
}

// For the trainer's next call.
void AsyncCheckpointerImpl::NoteError(const SaveJob& job, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (!error_.ok() || status.ok()) return;
  Status copy;
  Status copied = Guarded(job.step, [&] {
    copy = status;
    return Status::Ok();
  });
  error_ = std::move(copied.ok() ? copy : copied);
}

// The job that is in this phase and later than number `after`; null: there will be no more.
std::shared_ptr<SaveJob> AsyncCheckpointerImpl::AwaitPhase(std::stop_token stop, Phase phase,
                                                           uint64_t after) {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] { return phase_ == phase && job_->number > after; };
  return wake_.wait(lock, stop, is_there) ? job_ : nullptr;
}

void AsyncCheckpointerImpl::RunPreparer(std::stop_token stop) {
  while (const auto job = AwaitPhase(stop, Phase::kPreparing, 0)) {
    job->status = Guarded(job->step, [&] { return PrepareAndStage(job.get()); });
    if (!job->status.ok()) Release(job.get());
    EnterPhase(Phase::kWriting);
  }
}

Status AsyncCheckpointerImpl::PrepareAndStage(SaveJob* job) {
  VARVE_RETURN_IF_ERROR(BeginStep(job));
  EnterPhase(Phase::kStaging);
  VARVE_RETURN_IF_ERROR(job->stage.CopyFromDevices());
  job->stage.Work();
  VARVE_RETURN_IF_ERROR(job->stage.AwaitCopied());
  job->stats.changed_bytes = job->stage.changed_bytes();
  job->stats.staged_bytes = job->stage.staged_bytes();
  job->stats.waited_bytes = job->stage.waited_bytes();
  return Status::Ok();
}

void AsyncCheckpointerImpl::RunStager(std::stop_token stop) {
  uint64_t last = 0;
  while (const auto job = AwaitPhase(stop, Phase::kStaging, last)) {
    last = job->number;
    job->stage.Work();  // throws nothing
  }
}

void AsyncCheckpointerImpl::RunSaver(std::stop_token stop) {
  LowerThreadPriority();
  while (const auto job = AwaitPhase(stop, Phase::kWriting, 0)) {
    saved_.reset();
    if (job->status.ok()) job->status = Guarded(job->step, [&] { return CommitStep(job.get()); });
    if (job->status.ok()) {
      job->is_committed = true;
      Guarded(job->step, [&] {
        KeepSaved(job.get());
        return Status::Ok();
      }).IgnoreError();  // without it the next save looks up more
      if (pusher_ != nullptr) {
        NoteError(*job, Guarded(job->step, [&] {
          pusher_->Saved(job->step);
          return Status::Ok();
        }));
      }
      job->status = Guarded(job->step, [&] { return ApplyRetention(job.get()); });
    }
    job->session.reset();
    const Status told = Guarded(job->step, [&] {
      if (group_.ended) group_.ended(job->step, OptionsOf(*job), job->status);
      return Status::Ok();
    });
    NoteError(*job, told);
    Finish(job.get());
  }
}

Status AsyncCheckpointerImpl::AwaitTrainer(const SaveJob& job) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return is_awaited_; });
  return job.broken;
}

// Says what has become of the save.
Status AsyncCheckpointerImpl::Report(SaveJob* job) {
  SaveStats stats;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return is_awaited_; });  // only then is the stall known
    stats = job->stats;
  }
  stats.status = job->status;
  if (group_.annotate) group_.annotate(&stats);
  if (options_.on_save) options_.on_save(stats);
  const std::lock_guard lock(mutex_);
  last_stats_ = std::move(stats);
  return Status::Ok();
}

// Makes room for the next.
void AsyncCheckpointerImpl::Finish(SaveJob* job) {
  Release(job);
  NoteError(*job, Guarded(job->step, [&] { return Report(job); }));
  EnterPhase(Phase::kIdle);
}

Status RequireRun(const CheckpointId& id, std::string_view run) {
  if (id.run == run) return Status::Ok();
  return Status::InvalidArgument(
      StepName(id.run, id.step) + " is not of run " + std::string(run) +
      ", in which this checkpointer saves: to read it without going back to it, use LoadState");
}

Status ValidateOptions(const CheckpointerOptions& options) {
  VARVE_RETURN_IF_ERROR(ValidateRun(options.run));
  if (!(options.check_staging >= 0 && options.check_staging <= 1)) {
    return Status::InvalidArgument("check_staging is " + std::to_string(options.check_staging) +
                                   ", expected a share of chunks from 0 to 1");
  }
  if (options.remote.has_value() && options.remote->interval == 0) {
    return Status::InvalidArgument("the interval of pushes must be at least 1");
  }
  if (options.local_ranks >= 1 && options.retries >= 0) return Status::Ok();
  return Status::InvalidArgument("local_ranks must be at least 1, and retries at least 0");
}

int SaveThreads(const CheckpointerOptions& options) {
  if (options.store.num_threads != 0) return options.store.num_threads;
  return std::max(1, tbb::info::default_concurrency() / 2 / options.local_ranks);
}

StoreOptions StoreOptionsOf(const CheckpointerOptions& options) {
  StoreOptions store = options.store;
  store.num_threads = 0;  // a restore has the machine for itself
  return store;
}

namespace {

Result<std::unique_ptr<OwnCheckpointer>> Make(std::unique_ptr<Store> store,
                                              const std::filesystem::path& path,
                                              const CheckpointerOptions& options, GroupSide group,
                                              std::unique_ptr<BackgroundPusher> pusher) {
  const int num_threads = SaveThreads(options);
  auto made = std::make_unique<AsyncCheckpointerImpl>(std::move(store), path, options, num_threads,
                                                      std::move(group), std::move(pusher));
  VARVE_RETURN_IF_ERROR(made->StartThreads());
  return std::unique_ptr<OwnCheckpointer>(std::move(made));
}

}  // namespace

Result<std::unique_ptr<OwnCheckpointer>> MakeCheckpointer(std::unique_ptr<Store> store,
                                                          const std::filesystem::path& path,
                                                          const CheckpointerOptions& options,
                                                          GroupSide group) {
  return Make(std::move(store), path, options, std::move(group), nullptr);
}

Result<std::unique_ptr<OwnCheckpointer>> MakePushingCheckpointer(
    std::unique_ptr<Store> store, const std::filesystem::path& path,
    const CheckpointerOptions& options, std::unique_ptr<BackgroundPusher> pusher) {
  return Make(std::move(store), path, options, {}, std::move(pusher));
}

}  // namespace varve::internal

namespace varve {
using namespace internal;

Result<std::unique_ptr<AsyncCheckpointer>> AsyncCheckpointer::Open(
    const std::filesystem::path& path, const CheckpointerOptions& options) {
  VARVE_RETURN_IF_ERROR(ValidateOptions(options));
  if (Group::IsRoot(path)) {
    return Status::FailedPrecondition(
        path.string() +
        " is the root of a group, in which many ranks save: open it with OpenGroupCheckpointer "
        "(varve/group_checkpointer.h), also from a single rank");
  }
  if (options.remote.has_value()) {
    VARVE_RETURN_IF_ERROR(PrepareFromRemote(path, options.run, *options.remote, options.store.key));
  }
  VARVE_ASSIGN_OR_RETURN(auto store, Store::OpenOrCreate(path, {.store = StoreOptionsOf(options)}));
  std::unique_ptr<BackgroundPusher> pusher;
  if (options.remote.has_value()) {
    VARVE_ASSIGN_OR_RETURN(pusher,
                           BackgroundPusher::Start(path, *store, options.run, *options.remote));
  }
  VARVE_ASSIGN_OR_RETURN(
      auto made, MakePushingCheckpointer(std::move(store), path, options, std::move(pusher)));
  return std::unique_ptr<AsyncCheckpointer>(std::move(made));
}

Result<bool> AsyncCheckpointer::Save(uint64_t step, const TrainingState& state,
                                     const BeginOptions& options) {
  BeginOptions at_once = options;
  at_once.waits_at_once = true;
  VARVE_ASSIGN_OR_RETURN(const bool is_saving, BeginSave(step, state, at_once));
  if (is_saving) VARVE_RETURN_IF_ERROR(AwaitStaged());
  return is_saving;
}

}  // namespace varve
