// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/save/step_saver.h"

#include <tbb/info.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "trainer_hooks/save/free_space.h"
#include "trainer_hooks/state/item_name.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

SaveJob::SaveJob(SaveMemory* memory, uint64_t job_number, uint64_t step_number,
                 const TrainingState& from, const BeginOptions& options)
    : number(job_number),
      step(step_number),
      state(from),
      deadline(options.deadline),
      waits_at_once(options.waits_at_once),
      stage(memory->staging(), memory->devices()) {
  metrics.step = step;
  metrics.num_tensors = state.tensors.size();
}

void SaveEstimate::Learn(uint64_t changed_bytes, uint64_t stored_bytes, double seconds) {
  constexpr uint64_t kTooSmallToTell = uint64_t{16} << 20;
  if (changed_bytes < kTooSmallToTell) return;
  bytes_per_second_ = static_cast<double>(changed_bytes) / std::max(seconds, 1e-3);
  ratio_ = static_cast<double>(stored_bytes) / static_cast<double>(changed_bytes);
}

Status StepSaver::Begin(SaveJob* job) {
  VARVE_RETURN_IF_ERROR(job->stage.Add(job->state.tensors));
  if (digest_seed_.has_value()) VARVE_RETURN_IF_ERROR(BeginDigests(job));
  Status status = PrepareLineage(job->step);
  if (status.ok()) {
    auto begun = BeginWriter(*job, OptionsOf(*job));
    status = begun.status();
    if (begun.ok()) job->writer = *std::move(begun);
  }
  const bool is_refused = status.code() == StatusCode::kFailedPrecondition ||
                          status.code() == StatusCode::kAlreadyExists;
  if (is_refused) job->refused = status;
  VARVE_RETURN_IF_ERROR(status);
  if (!digest_seed_.has_value()) {  // the first save
    digest_seed_ = job->writer->digest_seed();
    VARVE_RETURN_IF_ERROR(BeginDigests(job));
  }
  VARVE_RETURN_IF_ERROR(job->stage.PutInto(job->writer.get()));
  return job->stage.LearnParents(job->writer.get());
}

Status StepSaver::BeginDigests(SaveJob* job) {
  return job->stage.BeginDigests(*digest_seed_,
                                 {.waits_at_once = job->waits_at_once,
                                  .is_awaiting = [job] { return job->is_awaited.load(); }});
}

Status StepSaver::Commit(SaveJob* job) {
  VARVE_RETURN_IF_ERROR(job->stage.AwaitArrived());
  SaveOptions options = OptionsOf(*job);
  ChooseCodec(*job, &options);
  // On this rank alone, if it is one of many: so no other attempt is begun for it.
  if (options.compression.has_value()) job->writer->SetCompression(*options.compression);
  VARVE_ASSIGN_OR_RETURN(const SaveReport report, CommitStaged(job, options));
  job->metrics.compression = options.compression.value_or(options_.store.compression);
  job->metrics.durable_seconds = SecondsSince(job->begun);
  job->metrics.logical_bytes = report.logical_bytes;
  job->metrics.new_bytes = report.new_bytes;
  job->metrics.stored_bytes = report.stored_bytes;
  job->metrics.warnings.insert(job->metrics.warnings.end(), report.warnings.begin(),
                               report.warnings.end());
  if (!options.compression.has_value()) {
    estimate_.Learn(job->metrics.changed_bytes, report.stored_bytes, attempt_seconds_);
  }
  return Status::Ok();
}

// A step is always the newest of its run. What a Restore has gone back behind makes room.
Status StepSaver::PrepareLineage(uint64_t step) {
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

SaveOptions StepSaver::OptionsOf(const SaveJob& job) const {
  const bool in_a_hurry = job.deadline.has_value();
  return {.run = options_.run,
          .on_existing = options_.on_existing,
          .num_threads = in_a_hurry ? tbb::info::default_concurrency() : num_threads_,
          .low_priority = !in_a_hurry};
}

Result<std::unique_ptr<SourceWriter>> StepSaver::BeginOnce(const SaveJob& job,
                                                           const SaveOptions& options) {
  VARVE_ASSIGN_OR_RETURN(auto writer, store_->Begin(job.step, options));
  for (const StateItem& item : job.state.items) {
    VARVE_ASSIGN_OR_RETURN(const std::string name, EncodeItemName({item.name, item.rank}));
    VARVE_RETURN_IF_ERROR(writer->PutBytes(name, item.value));
  }
  VARVE_RETURN_IF_ERROR(writer->SetTrainerProgress(job.state.trainer));
  if (job.state.topology) VARVE_RETURN_IF_ERROR(writer->SetTopology(*job.state.topology));
  for (const auto& [name, value] : job.state.metrics) {
    VARVE_RETURN_IF_ERROR(writer->SetMetric(name, value));
  }
  for (const std::string& tag : job.state.tags) VARVE_RETURN_IF_ERROR(writer->AddTag(tag));
  std::unique_ptr<SourceWriter> begun(static_cast<SourceWriter*>(writer.release()));
  begun->SetCondition(job.may_commit);
  return begun;
}

// Before a deadline, data is stored as it is when compressing it might take too long.
void StepSaver::ChooseCodec(const SaveJob& job, SaveOptions* options) const {
  constexpr double kMargin = 2;  // estimates are of a machine that had other work, and may again
  if (!job.deadline.has_value() || options_.store.compression == Compression::kNone) return;
  const double left = -SecondsSince(*job.deadline);
  if (kMargin * estimate_.SecondsToEncode(job.stage.changed_bytes()) > left) {
    options->compression = Compression::kNone;
  }
}

// Does not begin to write what will not fit.
Status StepSaver::CheckSpace(const SaveJob& job) const {
  return CheckFreeSpace(path_, path_.string(), "step " + std::to_string(job.step),
                        estimate_.BytesToStore(job.stage.changed_bytes()));
}

// Whether to try again after this result, having waited.
bool StepSaver::ShouldRetry(const Status& status, int attempt) const {
  if (status.code() != StatusCode::kIOError || attempt > options_.retries) return false;
  if (may_try_again_ && !may_try_again_()) return false;
  std::this_thread::sleep_for(std::chrono::seconds(1 << std::min(attempt - 1, 6)));
  return true;
}

Result<std::unique_ptr<SourceWriter>> StepSaver::BeginWriter(const SaveJob& job,
                                                             const SaveOptions& options) {
  for (int attempt = 1;; ++attempt) {
    Result<std::unique_ptr<SourceWriter>> writer = BeginOnce(job, options);
    if (writer.ok()) return writer;
    if (!ShouldRetry(writer.status(), attempt)) {
      return writer.status().WithContext("saving step " + std::to_string(job.step));
    }
  }
}

Result<SaveReport> StepSaver::CommitStaged(SaveJob* job, const SaveOptions& options) {
  for (int attempt = 1;; ++attempt) {
    const auto start = Clock::now();
    job->metrics.attempts = attempt;
    const Status space = CheckSpace(*job);
    Result<SaveReport> report = space.ok() ? job->writer->Commit() : Result<SaveReport>(space);
    attempt_seconds_ = SecondsSince(start);
    // What was not staged may have changed since.
    if (!job->stage.is_all_staged() || !ShouldRetry(report.status(), attempt)) return report;
    VARVE_ASSIGN_OR_RETURN(job->writer, BeginWriter(*job, options));
    VARVE_RETURN_IF_ERROR(job->stage.PutInto(job->writer.get()));
  }
}

Status StepSaver::ApplyRetention(SaveJob* job) {
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
  job->metrics.dropped_steps = dropped.size();
  return Status::Ok();
}

}  // namespace varve
