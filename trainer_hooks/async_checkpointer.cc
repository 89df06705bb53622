// SPDX-License-Identifier: Apache-2.0
//
// A save on its threads:
//
//   trainer   BeginSave ──► forward, backward ──► AwaitStaged ──► optimizer step, next steps ...
//                 │                                   ▲ helps to stage, waits until all is copied
//   stagers       │         ┌─► digest, copy ─────────┤
//   saver         └► prepare ───────────────────────► encode, commit ──► retention ──► report
//
// What lies on devices is digested there from the begin of the save on, while the saver prepares,
// and copied by the devices when the saver tells them what has changed.
//
// The saver, and whatever works for it, has low priority: the trainer waits for it only while it
// prepares, which takes little, and when staging is full. The stagers have the trainer's: it cannot
// go on before they are done, and would otherwise starve them itself.
#include "varve/async_checkpointer.h"

#include <tbb/info.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "store/low_priority.h"
#include "store/step_expr.h"
#include "trainer_hooks/item_name.h"
#include "trainer_hooks/make_checkpointer.h"
#include "trainer_hooks/save_memory.h"
#include "trainer_hooks/stage.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// How fast saves have been, and how small their data becomes: what the estimates need.
class Estimator {
 public:
  explicit Estimator(int num_threads) : bytes_per_second_(2e8 * num_threads) {}

  void Learn(uint64_t changed_bytes, uint64_t stored_bytes, double seconds) {
    constexpr uint64_t kTooSmallToTell = uint64_t{16} << 20;
    if (changed_bytes < kTooSmallToTell) return;
    bytes_per_second_ = static_cast<double>(changed_bytes) / std::max(seconds, 1e-3);
    ratio_ = static_cast<double>(stored_bytes) / static_cast<double>(changed_bytes);
  }
  double SecondsToEncode(uint64_t changed_bytes) const {
    return static_cast<double>(changed_bytes) / bytes_per_second_;
  }
  uint64_t BytesToStore(uint64_t changed_bytes) const {
    return static_cast<uint64_t>(static_cast<double>(changed_bytes) * ratio_);
  }

 private:
  double bytes_per_second_;  // before the first save, a slow machine's
  double ratio_ = 0.5;       // before the first save, optimistic: a wrong refusal would be worse
};

// A save on its way. Made by the trainer's thread, shared with the saver until both are done with
// it.
struct Job {
  Job(SaveMemory* memory, uint64_t job_number, uint64_t step_number, const TrainingState& from,
      const BeginOptions& options)
      : number(job_number),
        step(step_number),
        state(from),
        deadline(options.deadline),
        waits_at_once(options.waits_at_once),
        stage(memory->staging(), memory->devices()) {
    metrics.step = step;
    metrics.num_tensors = state.tensors.size();
  }

  const uint64_t number;  // 1, 2, ...
  const uint64_t step;
  const TrainingState state;
  const std::optional<Clock::time_point> deadline;
  const bool waits_at_once;
  const Clock::time_point begun = Clock::now();
  Stage stage;
  std::atomic<bool> is_awaited = false;  // the trainer waits in AwaitStaged, or has left it
  SaveMetrics metrics;                   // guarded by the checkpointer's mutex, as is
  Status refused;  // why there is nothing to save: the caller's error, and no failure of a save
};

enum class Phase { kIdle, kPreparing, kStaging, kWriting };

class AsyncCheckpointerImpl : public OwnCheckpointer {
 public:
  AsyncCheckpointerImpl(std::unique_ptr<Store> store, std::filesystem::path path,
                        const CheckpointerOptions& options, int num_threads,
                        std::function<void(SaveMetrics*)> annotate)
      : store_(std::move(store)),
        path_(std::move(path)),
        options_(options),
        num_threads_(num_threads),
        annotate_(std::move(annotate)),
        memory_(options_.staging_budget_bytes, options_.devices),
        estimator_(num_threads),
        saver_([this](std::stop_token stop) { RunSaver(stop); }) {
    for (int i = 0; i < num_threads; ++i) {
      stagers_.emplace_back([this](std::stop_token stop) { RunStager(stop); });
    }
  }
  ~AsyncCheckpointerImpl() override {
    const Status status = AsyncCheckpointerImpl::Close();
    if (!status.ok() && !is_error_seen_) {
      std::fprintf(stderr, "varve: an error that nobody asked for: %s\n",
                   status.ToString().c_str());
    }
  }

  Status Prewarm(const TrainingState& state) override;
  Result<bool> BeginSave(uint64_t step, const TrainingState& state,
                         const BeginOptions& options) override;
  Status AwaitStaged() override;
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
  std::optional<SaveMetrics> last_metrics() const override;
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

  // On a stager's.
  void RunStager(std::stop_token stop);

  // On the saver's.
  void RunSaver(std::stop_token stop);
  void RunJob(Job* job);
  Status SaveJob(Job* job);
  Result<std::unique_ptr<CheckpointWriter>> Prepare(Job* job, const SaveOptions& options);
  Status PrepareLineage(uint64_t step);
  SaveOptions MakeSaveOptions(const Job& job) const;
  bool ShouldRetry(const Status& status, int attempt) const;
  Result<std::unique_ptr<CheckpointWriter>> BeginOnce(const Job& job, const SaveOptions& options);
  Result<std::unique_ptr<CheckpointWriter>> Begin(const Job& job, const SaveOptions& options);
  void ChooseCodec(const Job& job, SaveOptions* options) const;
  Status CheckSpace(const Job& job) const;
  Result<SaveReport> Commit(Job* job, std::unique_ptr<CheckpointWriter> writer,
                            const SaveOptions& options);
  Status ApplyRetention(Job* job);
  void EnterPhase(Phase phase);

  std::unique_ptr<Store> store_;
  const std::filesystem::path path_;
  const CheckpointerOptions options_;
  const int num_threads_;
  const std::function<void(SaveMetrics*)> annotate_;
  SaveMemory memory_;                    // of the trainer's thread, while no save is under way
  uint64_t num_jobs_ = 0;                // the same
  Estimator estimator_;                  // of the saver
  std::optional<uint64_t> restored_;     // of the trainer's thread while idle, then of the saver
  double attempt_seconds_ = 0;           // of the saver: what the last commit took
  std::optional<uint64_t> digest_seed_;  // the store's; of the saver

  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  Phase phase_ = Phase::kIdle;  // guarded, as all below
  std::shared_ptr<Job> job_;    // the save under way, or the last
  std::optional<SaveMetrics> last_metrics_;
  Status error_;  // the first that has not been returned yet, or is fatal
  bool is_error_seen_ = false;
  bool is_awaited_ = true;  // AwaitStaged has returned for job_
  bool is_closed_ = false;

  std::jthread saver_;  // last, with the stagers: they join before anything above goes
  std::vector<std::jthread> stagers_;
};

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
  SaveMetrics metrics{.step = step, .skipped = true};
  if (options_.on_save) options_.on_save(metrics);
  const std::lock_guard lock(mutex_);
  last_metrics_ = metrics;
}

Result<bool> AsyncCheckpointerImpl::BeginSave(uint64_t step, const TrainingState& state,
                                              const BeginOptions& options) {
  const auto start = Clock::now();
  VARVE_RETURN_IF_ERROR(RequireOpen());
  VARVE_RETURN_IF_ERROR(AwaitStaged());
  VARVE_RETURN_IF_ERROR(ValidateState(state, options_.devices.get()));
  double waited = 0;
  if (!WaitForTurn(&waited)) {
    Skip(step);
    return false;
  }
  VARVE_RETURN_IF_ERROR(SeenError());
  VARVE_RETURN_IF_ERROR(memory_.Fit(state));
  if (memory_.is_on_devices()) VARVE_RETURN_IF_ERROR(options_.devices->MarkBegin());
  auto job = std::make_shared<Job>(&memory_, ++num_jobs_, step, state, options);
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
  std::shared_ptr<Job> job;
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
  job->stage.AwaitCopied();
  Status released;
  if (memory_.is_on_devices()) released = options_.devices->MarkRelease();
  const auto copied = Clock::now();
  job->stage.AwaitReleased();
  const auto end = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    is_awaited_ = true;
    if (!job->stage.is_all_staged()) job->metrics.staging_wait_seconds = Seconds(end - copied);
    job->metrics.stall_seconds += Seconds(end - start);
    job->metrics.staged_seconds = Seconds(end - job->begun);
    wake_.notify_all();  // the saver reports
    if (!job->refused.ok()) return job->refused;
  }
  const Status seen = SeenError();
  return seen.ok() ? released : seen;
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
  restored_ = id.step;
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
  saver_ = {};
  stagers_.clear();
  memory_.Release().IgnoreError();
  store_.reset();
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  return error_;
}

std::optional<SaveMetrics> AsyncCheckpointerImpl::last_metrics() const {
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

void AsyncCheckpointerImpl::RunStager(std::stop_token stop) {
  uint64_t last = 0;
  while (true) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      const auto has_work = [&] { return phase_ == Phase::kStaging && job_->number != last; };
      if (!wake_.wait(lock, stop, has_work)) return;
      job = job_;
    }
    last = job->number;
    job->stage.Work();
  }
}

void AsyncCheckpointerImpl::RunSaver(std::stop_token stop) {
  LowerThreadPriority();
  while (true) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [&] { return phase_ == Phase::kPreparing; })) return;
      job = job_;
    }
    RunJob(job.get());
  }
}

void AsyncCheckpointerImpl::RunJob(Job* job) {
  Status status;
  try {  // of the standard library: out of memory, no thread to be had
    status = SaveJob(job);
    if (status.ok()) status = ApplyRetention(job);
  } catch (const std::exception& error) {
    status = Status::Unavailable("saving step " + std::to_string(job->step) + ": " + error.what());
  }
  job->stage.AwaitArrived().IgnoreError();  // of a save that failed
  SaveMetrics metrics;
  {
    std::unique_lock lock(mutex_);
    job->metrics.status = status;
    if (error_.ok() && job->refused.ok()) error_ = status;
    if (phase_ == Phase::kPreparing) phase_ = Phase::kWriting;  // lets AwaitStaged go
    job->stage.ReleaseAll();
    wake_.notify_all();
    wake_.wait(lock, [&] { return is_awaited_; });  // only then is the stall known
    metrics = job->metrics;
  }
  if (annotate_) annotate_(&metrics);
  if (options_.on_save) options_.on_save(metrics);
  const std::lock_guard lock(mutex_);
  last_metrics_ = metrics;
  phase_ = Phase::kIdle;
  wake_.notify_all();
}

// Everything before the first tensor of the host is looked at.
Result<std::unique_ptr<CheckpointWriter>> AsyncCheckpointerImpl::Prepare(
    Job* job, const SaveOptions& options) {
  VARVE_RETURN_IF_ERROR(job->stage.Add(job->state.tensors));
  const auto begin_digests = [&] {
    return job->stage.BeginDigests(*digest_seed_,
                                   {.waits_at_once = job->waits_at_once,
                                    .is_awaiting = [job] { return job->is_awaited.load(); }});
  };
  if (digest_seed_.has_value()) VARVE_RETURN_IF_ERROR(begin_digests());
  Status status = PrepareLineage(job->step);
  std::unique_ptr<CheckpointWriter> writer;
  if (status.ok()) {
    auto begun = Begin(*job, options);
    status = begun.status();
    if (begun.ok()) writer = *std::move(begun);
  }
  const bool is_refused = status.code() == StatusCode::kFailedPrecondition ||
                          status.code() == StatusCode::kAlreadyExists;
  if (is_refused) {
    const std::lock_guard lock(mutex_);
    job->refused = status;
  }
  VARVE_RETURN_IF_ERROR(status);
  const auto& source_writer = static_cast<SourceWriter&>(*writer);
  if (!digest_seed_.has_value()) {  // the first save
    digest_seed_ = source_writer.digest_seed();
    VARVE_RETURN_IF_ERROR(begin_digests());
  }
  VARVE_RETURN_IF_ERROR(job->stage.LearnParents(source_writer));
  return writer;
}

Status AsyncCheckpointerImpl::SaveJob(Job* job) {
  SaveOptions options = MakeSaveOptions(*job);
  VARVE_ASSIGN_OR_RETURN(auto writer, Prepare(job, options));
  EnterPhase(Phase::kStaging);
  VARVE_RETURN_IF_ERROR(job->stage.CopyFromDevices());
  job->stage.AwaitCopied();
  {
    const std::lock_guard lock(mutex_);
    job->metrics.changed_bytes = job->stage.changed_bytes();
    job->metrics.staged_bytes = job->stage.staged_bytes();
  }
  EnterPhase(Phase::kWriting);
  VARVE_RETURN_IF_ERROR(job->stage.AwaitArrived());
  ChooseCodec(*job, &options);
  if (options.codec.has_value()) {  // the writer has the wrong one
    VARVE_ASSIGN_OR_RETURN(writer, Begin(*job, options));
  }
  VARVE_ASSIGN_OR_RETURN(const SaveReport report, Commit(job, std::move(writer), options));
  const std::lock_guard lock(mutex_);
  job->metrics.codec = options.codec.value_or(options_.store.codec);
  job->metrics.durable_seconds = Seconds(Clock::now() - job->begun);
  job->metrics.logical_bytes = report.logical_bytes;
  job->metrics.new_bytes = report.new_bytes;
  job->metrics.stored_bytes = report.stored_bytes;
  if (!options.codec.has_value()) {
    estimator_.Learn(job->metrics.changed_bytes, report.stored_bytes, attempt_seconds_);
  }
  return Status::Ok();
}

// A step is always the newest of its run. What a Restore has gone back behind makes room.
Status AsyncCheckpointerImpl::PrepareLineage(uint64_t step) {
  const auto newest = store_->LatestStep(options_.run);
  if (newest.status().code() == StatusCode::kNotFound) return Status::Ok();
  VARVE_RETURN_IF_ERROR(newest.status());
  if (restored_.has_value() && newest->has_value() && **newest > *restored_ && step > *restored_) {
    VARVE_RETURN_IF_ERROR(store_->Rewind(options_.run, *restored_).status());
  } else if (newest->has_value() && **newest > step) {
    return Status::FailedPrecondition(
        "run " + options_.run + " has steps up to " + std::to_string(**newest) + "; step " +
        std::to_string(step) +
        " would not be its newest. Restore an earlier step first, or save in another run");
  }
  restored_.reset();
  return Status::Ok();
}

SaveOptions AsyncCheckpointerImpl::MakeSaveOptions(const Job& job) const {
  const bool in_a_hurry = job.deadline.has_value();
  return {.run = options_.run,
          .on_existing = options_.on_existing,
          .num_threads = in_a_hurry ? tbb::info::default_concurrency() : num_threads_,
          .low_priority = !in_a_hurry};
}

Result<std::unique_ptr<CheckpointWriter>> AsyncCheckpointerImpl::BeginOnce(
    const Job& job, const SaveOptions& options) {
  VARVE_ASSIGN_OR_RETURN(auto writer, store_->Begin(job.step, options));
  for (const StateItem& item : job.state.items) {
    VARVE_ASSIGN_OR_RETURN(const std::string name, EncodeItemName({item.name, item.rank}));
    VARVE_RETURN_IF_ERROR(writer->PutBytes(name, item.value));
  }
  VARVE_RETURN_IF_ERROR(writer->SetTrainerState(job.state.trainer));
  if (job.state.topology) VARVE_RETURN_IF_ERROR(writer->SetTopology(*job.state.topology));
  for (const auto& [name, value] : job.state.metrics) {
    VARVE_RETURN_IF_ERROR(writer->SetMetric(name, value));
  }
  for (const std::string& tag : job.state.tags) VARVE_RETURN_IF_ERROR(writer->AddTag(tag));
  return writer;
}

// Before a deadline, data is stored as it is when compressing it might take too long.
void AsyncCheckpointerImpl::ChooseCodec(const Job& job, SaveOptions* options) const {
  constexpr double kMargin = 2;  // estimates are of a machine that had other work, and may again
  if (!job.deadline.has_value() || options_.store.codec == Codec::kNone) return;
  const double left = Seconds(*job.deadline - Clock::now());
  if (kMargin * estimator_.SecondsToEncode(job.stage.changed_bytes()) > left) {
    options->codec = Codec::kNone;
  }
}

// Does not begin to write what will not fit.
Status AsyncCheckpointerImpl::CheckSpace(const Job& job) const {
  std::error_code error;
  const auto space = std::filesystem::space(path_, error);
  if (error) return Status::IOError(path_.string() + ": " + error.message());
  const uint64_t needed = estimator_.BytesToStore(job.stage.changed_bytes());
  if (space.available >= needed) return Status::Ok();
  return Status::IOError(path_.string() + ": step " + std::to_string(job.step) + " needs about " +
                         std::to_string(needed) + " bytes, and only " +
                         std::to_string(space.available) + " are free");
}

// Whether to try again after this result, having waited.
bool AsyncCheckpointerImpl::ShouldRetry(const Status& status, int attempt) const {
  if (status.code() != StatusCode::kIOError || attempt > options_.retries) return false;
  std::this_thread::sleep_for(std::chrono::seconds(1 << std::min(attempt - 1, 6)));
  return true;
}

Result<std::unique_ptr<CheckpointWriter>> AsyncCheckpointerImpl::Begin(const Job& job,
                                                                       const SaveOptions& options) {
  for (int attempt = 1;; ++attempt) {
    Result<std::unique_ptr<CheckpointWriter>> writer = BeginOnce(job, options);
    if (writer.ok()) return writer;
    if (!ShouldRetry(writer.status(), attempt)) {
      return writer.status().WithContext("saving step " + std::to_string(job.step));
    }
  }
}

Result<SaveReport> AsyncCheckpointerImpl::Commit(Job* job, std::unique_ptr<CheckpointWriter> writer,
                                                 const SaveOptions& options) {
  for (int attempt = 1;; ++attempt) {
    const auto start = Clock::now();
    VARVE_RETURN_IF_ERROR(job->stage.PutInto(static_cast<SourceWriter*>(writer.get())));
    const Status space = CheckSpace(*job);
    Result<SaveReport> report = space.ok() ? writer->Commit() : Result<SaveReport>(space);
    attempt_seconds_ = Seconds(Clock::now() - start);
    {
      const std::lock_guard lock(mutex_);
      job->metrics.attempts = attempt;
    }
    // What was not staged may have changed since.
    if (!job->stage.is_all_staged() || !ShouldRetry(report.status(), attempt)) return report;
    VARVE_ASSIGN_OR_RETURN(writer, Begin(*job, options));
  }
}

Status AsyncCheckpointerImpl::ApplyRetention(Job* job) {
  if (!options_.retention.has_value() || options_.retention->empty()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const auto checkpoints, store_->ListCheckpoints(options_.run));
  RetentionPolicy policy = *options_.retention;
  policy.keep_last = std::max<uint64_t>(policy.keep_last, 1);  // the step just saved
  VARVE_ASSIGN_OR_RETURN(const auto decisions, DecideRetention(policy, checkpoints));
  const std::vector<CheckpointId> dropped = DroppedBy(decisions);
  if (dropped.empty()) return Status::Ok();
  const auto report = store_->Drop(dropped);
  // Another process may have asked for the same; what is left goes after the next save.
  if (report.status().code() == StatusCode::kNotFound) return Status::Ok();
  if (!report.ok()) return report.status().WithContext("dropping old steps");
  const std::lock_guard lock(mutex_);
  job->metrics.dropped_steps = dropped.size();
  return Status::Ok();
}

}  // namespace

Status ValidateOptions(const CheckpointerOptions& options) {
  VARVE_RETURN_IF_ERROR(ValidateRun(options.run));
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

std::unique_ptr<OwnCheckpointer> MakeCheckpointer(std::unique_ptr<Store> store,
                                                  const std::filesystem::path& path,
                                                  const CheckpointerOptions& options,
                                                  std::function<void(SaveMetrics*)> annotate) {
  return std::make_unique<AsyncCheckpointerImpl>(std::move(store), path, options,
                                                 SaveThreads(options), std::move(annotate));
}

Result<std::unique_ptr<AsyncCheckpointer>> AsyncCheckpointer::Open(
    const std::filesystem::path& path, const CheckpointerOptions& options) {
  VARVE_RETURN_IF_ERROR(ValidateOptions(options));
  VARVE_ASSIGN_OR_RETURN(auto store, Store::OpenOrCreate(path, {.store = StoreOptionsOf(options)}));
  return std::unique_ptr<AsyncCheckpointer>(MakeCheckpointer(std::move(store), path, options));
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
