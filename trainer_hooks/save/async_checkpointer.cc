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
#include "varve/async_checkpointer.h"

#include <tbb/info.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "base/low_priority.h"
#include "trainer_hooks/save/make_checkpointer.h"
#include "trainer_hooks/save/save_memory.h"
#include "trainer_hooks/save/step_saver.h"
#include "trainer_hooks/state/validate_state.h"
#include "varve/group.h"
#include "varve/step.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

enum class Phase { kIdle, kPreparing, kStaging, kWriting };

// Of the standard library: out of memory, no thread to be had. Throws nothing.
template <typename Step>
Status Guarded(const SaveJob& job, const Step& step) {
  try {
    try {
      return step();
    } catch (const std::exception& error) {
      return Status::Unavailable("saving step " + std::to_string(job.step) + ": " + error.what());
    }
  } catch (const std::exception&) {
    return Status::Unavailable("out of memory");  // short enough to take none
  } catch (...) {
    return Status::Unavailable("an exception");
  }
}

class AsyncCheckpointerImpl : public OwnCheckpointer {
 public:
  AsyncCheckpointerImpl(std::unique_ptr<Store> store, std::filesystem::path path,
                        const CheckpointerOptions& options, int num_threads, GroupSide group)
      : store_(std::move(store)),
        options_(options),
        group_(std::move(group)),
        memory_(options_.staging_budget_bytes, options_.devices),
        step_saver_(store_.get(), std::move(path), options, num_threads, group_.may_try_again) {}
  // Before all else, once. kUnavailable: there is no thread to be had.
  Status StartThreads(int num_threads);
  ~AsyncCheckpointerImpl() override {
    const Status status = AsyncCheckpointerImpl::Close();
    if (!status.ok() && !is_error_seen_) {
      std::fprintf(stderr, "varve: unreported error: %s\n", status.ToString().c_str());
    }
  }

  Status Prewarm(const TrainingState& state) override;
  Result<bool> BeginSave(uint64_t step, const TrainingState& state,
                         const BeginOptions& options) override;
  Status AwaitStaged() override;
  Status RequireAwaited() override;
  Status Wait() override;
  Status ReleaseStaging() override;
  Result<LoadReport> Restore(std::string_view step, const LoadOptions& options,
                             TrainingState* into) override {
    LoneReader read;
    return RestoreThrough(step, options, &read, into);
  }
  Result<LoadReport> RestoreThrough(std::string_view step, const LoadOptions& options,
                                    RegionReader* read, TrainingState* into) override;
  Status SetMetrics(uint64_t step, const std::map<std::string, double>& metrics) override;
  Status SetTag(uint64_t step, std::string_view tag) override;
  Status Close() override;
  std::optional<SaveStats> last_stats() const override;
  Status failure() const override;
  Store& store() override { return *store_; }
  bool IsBusy() const override;
  void Skip(uint64_t step) override;

 private:
  // On the trainer's thread.
  Status RequireOpen() const;
  Status SeenError();
  bool WaitForTurn(double* waited);
  void AwaitIdle();
  std::shared_ptr<SaveJob> MakeJob(uint64_t step, const TrainingState& state,
                                   const BeginOptions& options);

  std::shared_ptr<SaveJob> AwaitPhase(std::stop_token stop, Phase phase, uint64_t after);
  void EnterPhase(Phase phase);
  void Release(SaveJob* job);
  void NoteError(const SaveJob& job, const Status& status);

  // On the preparer's thread, a stager's, the saver's.
  void RunPreparer(std::stop_token stop);
  Status PrepareAndStage(SaveJob* job);
  void RunStager(std::stop_token stop);
  void RunSaver(std::stop_token stop);
  Status AwaitTrainer(const SaveJob& job);
  Status Write(SaveJob* job);
  Status Report(SaveJob* job);
  void Finish(SaveJob* job);

  std::unique_ptr<Store> store_;
  const CheckpointerOptions options_;
  const GroupSide group_;
  SaveMemory memory_;      // of the trainer's thread, while no save is under way
  uint64_t num_jobs_ = 0;  // the same
  StepSaver step_saver_;   // of the trainer's, the preparer's, the saver's, one after the other

  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  Phase phase_ = Phase::kIdle;    // guarded, as all below
  std::shared_ptr<SaveJob> job_;  // the save under way, or the last
  std::optional<SaveStats> last_metrics_;
  Status error_;  // the first that has not been returned yet, or is fatal
  bool is_error_seen_ = false;
  bool is_awaited_ = true;  // AwaitStaged has returned for job_
  bool is_closed_ = false;

  std::vector<std::jthread> threads_;  // last: they join before anything above goes
};

Status AsyncCheckpointerImpl::StartThreads(int num_threads) {
  // The preparer stages, too, unless it waits for devices.
  const int stagers = options_.devices != nullptr ? num_threads : num_threads - 1;
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
  VARVE_RETURN_IF_ERROR(ValidateState(state, options_.devices.get()));
  return memory_.Prewarm(state);
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
  SaveStats metrics{.step = step, .skipped = true};
  if (options_.on_save) options_.on_save(metrics);
  const std::lock_guard lock(mutex_);
  last_metrics_ = metrics;
}

std::shared_ptr<SaveJob> AsyncCheckpointerImpl::MakeJob(uint64_t step, const TrainingState& state,
                                                        const BeginOptions& options) {
  auto job = std::make_shared<SaveJob>(&memory_, ++num_jobs_, step, state, options);
  job->may_commit = [this, job = job.get()] { return AwaitTrainer(*job); };
  if (options_.check_staging > 0) {
    job->check.emplace(state.tensors, options_.check_staging, job->number);
  }
  return job;
}

Result<bool> AsyncCheckpointerImpl::BeginSave(uint64_t step, const TrainingState& state,
                                              const BeginOptions& options) {
  const auto start = Clock::now();
  VARVE_RETURN_IF_ERROR(RequireAwaited());
  VARVE_RETURN_IF_ERROR(SeenError());
  VARVE_RETURN_IF_ERROR(ValidateState(state, options_.devices.get()));
  double waited = 0;
  if (!WaitForTurn(&waited)) {
    Skip(step);
    return false;
  }
  VARVE_RETURN_IF_ERROR(SeenError());
  VARVE_RETURN_IF_ERROR(memory_.Fit(state));
  if (memory_.is_on_devices()) VARVE_RETURN_IF_ERROR(options_.devices->MarkBegin());
  std::shared_ptr<SaveJob> job;
  try {
    job = MakeJob(step, state, options);
  } catch (const std::exception& error) {  // there is no memory for its items
    return Status::Unavailable("saving step " + std::to_string(step) + ": " + error.what());
  }
  job->metrics.busy_wait_seconds = waited;
  job->metrics.stall_seconds = Seconds(Clock::now() - start);
  const std::lock_guard lock(mutex_);
  job_ = std::move(job);
  is_awaited_ = false;
  phase_ = Phase::kPreparing;
  wake_.notify_all();
  return true;
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
    if (!job->stage.is_all_staged()) job->metrics.staging_wait_seconds = Seconds(end - copied);
    job->metrics.stall_seconds += Seconds(end - start);
    job->metrics.staged_seconds = Seconds(end - job->begun);
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

Result<LoadReport> AsyncCheckpointerImpl::RestoreThrough(std::string_view step,
                                                         const LoadOptions& options,
                                                         RegionReader* read, TrainingState* into) {
  VARVE_RETURN_IF_ERROR(Wait());
  VARVE_ASSIGN_OR_RETURN(const CheckpointId id, ResolveStepOfRun(*store_, options_.run, step));
  VARVE_ASSIGN_OR_RETURN(const auto reader, store_->OpenCheckpoint(id.run, id.step));
  LoadOptions with = options;
  if (with.devices == nullptr) with.devices = options_.devices;
  VARVE_ASSIGN_OR_RETURN(LoadReport report, LoadThrough(*reader, with, read, into));
  step_saver_.SetRestored(id.step);
  return report;
}

Status AsyncCheckpointerImpl::SetMetrics(uint64_t step,
                                         const std::map<std::string, double>& metrics) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  if (job_ != nullptr && job_->step == step) VARVE_RETURN_IF_ERROR(Wait());
  return store_->SetMetrics({options_.run, step}, metrics);
}

Status AsyncCheckpointerImpl::SetTag(uint64_t step, std::string_view tag) {
  VARVE_RETURN_IF_ERROR(RequireOpen());
  if (job_ != nullptr && job_->step == step) VARVE_RETURN_IF_ERROR(Wait());
  return store_->SetTag({options_.run, step}, tag);
}

Status AsyncCheckpointerImpl::Close() {
  if (!RequireOpen().ok()) return Status::Ok();
  Wait().IgnoreError();  // what it returns is in error_
  threads_.clear();
  memory_.Release().IgnoreError();
  store_.reset();
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  return error_;
}

std::optional<SaveStats> AsyncCheckpointerImpl::last_stats() const {
  const std::lock_guard lock(mutex_);
  return last_metrics_;
}

Status AsyncCheckpointerImpl::failure() const {
  const std::lock_guard lock(mutex_);
  return options_.failure_is_fatal ? error_ : Status::Ok();
}

void AsyncCheckpointerImpl::EnterPhase(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  wake_.notify_all();
}

// Lets the trainer go, who then knows of a failure.
void AsyncCheckpointerImpl::Release(SaveJob* job) {
  const Status arrived = Guarded(*job, [&] { return job->stage.AwaitArrived(); });
  arrived.IgnoreError();  // of a save that failed
  if (job->refused.ok()) NoteError(*job, job->status);
  job->stage.ReleaseAll();
}

// For the trainer's next call.
void AsyncCheckpointerImpl::NoteError(const SaveJob& job, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (!error_.ok() || status.ok()) return;
  Status copy;
  const Status copied = Guarded(job, [&] {
    copy = status;
    return Status::Ok();
  });
  error_ = copied.ok() ? std::move(copy) : copied;
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
    job->status = Guarded(*job, [&] { return PrepareAndStage(job.get()); });
    if (!job->status.ok()) Release(job.get());
    EnterPhase(Phase::kWriting);
  }
}

Status AsyncCheckpointerImpl::PrepareAndStage(SaveJob* job) {
  VARVE_RETURN_IF_ERROR(step_saver_.Begin(job));
  EnterPhase(Phase::kStaging);
  VARVE_RETURN_IF_ERROR(job->stage.CopyFromDevices());
  job->stage.Work();
  VARVE_RETURN_IF_ERROR(job->stage.AwaitCopied());
  job->metrics.changed_bytes = job->stage.changed_bytes();
  job->metrics.staged_bytes = job->stage.staged_bytes();
  job->metrics.waited_bytes = job->stage.waited_bytes();
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
    if (job->status.ok()) job->status = Guarded(*job, [&] { return Write(job.get()); });
    job->writer.reset();
    const Status told = Guarded(*job, [&] {
      if (group_.ended) group_.ended(job->step, step_saver_.OptionsOf(*job), job->status);
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

Status AsyncCheckpointerImpl::Write(SaveJob* job) {
  VARVE_RETURN_IF_ERROR(step_saver_.Commit(job));
  return step_saver_.ApplyRetention(job);
}

// Says what has become of the save.
Status AsyncCheckpointerImpl::Report(SaveJob* job) {
  SaveStats metrics;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return is_awaited_; });  // only then is the stall known
    metrics = job->metrics;
  }
  metrics.status = job->status;
  if (group_.annotate) group_.annotate(&metrics);
  if (options_.on_save) options_.on_save(metrics);
  const std::lock_guard lock(mutex_);
  last_metrics_ = std::move(metrics);
  return Status::Ok();
}

// Makes room for the next.
void AsyncCheckpointerImpl::Finish(SaveJob* job) {
  Release(job);
  NoteError(*job, Guarded(*job, [&] { return Report(job); }));
  EnterPhase(Phase::kIdle);
}

}  // namespace

Status ValidateOptions(const CheckpointerOptions& options) {
  VARVE_RETURN_IF_ERROR(ValidateRun(options.run));
  if (!(options.check_staging >= 0 && options.check_staging <= 1)) {
    return Status::InvalidArgument("check_staging is " + std::to_string(options.check_staging) +
                                   ", expected a share of chunks from 0 to 1");
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

Result<std::unique_ptr<OwnCheckpointer>> MakeCheckpointer(std::unique_ptr<Store> store,
                                                          const std::filesystem::path& path,
                                                          const CheckpointerOptions& options,
                                                          GroupSide group) {
  const int num_threads = SaveThreads(options);
  auto made = std::make_unique<AsyncCheckpointerImpl>(std::move(store), path, options, num_threads,
                                                      std::move(group));
  VARVE_RETURN_IF_ERROR(made->StartThreads(num_threads));
  return std::unique_ptr<OwnCheckpointer>(std::move(made));
}

Result<std::unique_ptr<AsyncCheckpointer>> AsyncCheckpointer::Open(
    const std::filesystem::path& path, const CheckpointerOptions& options) {
  VARVE_RETURN_IF_ERROR(ValidateOptions(options));
  if (Group::IsRoot(path)) {
    return Status::FailedPrecondition(
        path.string() +
        " is the root of a group, in which many ranks save: open it with OpenGroupCheckpointer "
        "(varve/group_checkpointer.h), also from a single rank");
  }
  VARVE_ASSIGN_OR_RETURN(auto store, Store::OpenOrCreate(path, {.store = StoreOptionsOf(options)}));
  VARVE_ASSIGN_OR_RETURN(auto made, MakeCheckpointer(std::move(store), path, options));
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
