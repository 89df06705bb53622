// SPDX-License-Identifier: Apache-2.0
//
// What the save of one step does to the store.
#include <tbb/info.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/add_new.h"
#include "base/seconds_since.h"
#include "trainer_hooks/save/async_checkpointer_impl.h"
#include "trainer_hooks/save/free_space.h"
#include "trainer_hooks/state/item_name.h"

namespace varve::internal {

void SaveEstimate::Learn(uint64_t changed_bytes, uint64_t stored_bytes, double seconds) {
  constexpr uint64_t kTooSmallToTell = uint64_t{16} << 20;
  if (changed_bytes < kTooSmallToTell) return;
  bytes_per_second_ = static_cast<double>(changed_bytes) / std::max(seconds, 1e-3);
  ratio_ = static_cast<double>(stored_bytes) / static_cast<double>(changed_bytes);
}

Status AsyncCheckpointerImpl::BeginStep(SaveJob* job) {
  if (digest_seed_.has_value()) VARVE_RETURN_IF_ERROR(BeginDigests(job));
  auto begun = BeginSession(*job);
  const bool is_refused = begun.status().code() == StatusCode::kFailedPrecondition ||
                          begun.status().code() == StatusCode::kAlreadyExists;
  if (is_refused) job->refused = begun.status();
  VARVE_RETURN_IF_ERROR(begun.status());
  job->session = *std::move(begun);
  if (!digest_seed_.has_value()) {  // the first save
    digest_seed_ = job->session->digest_seed();
    VARVE_RETURN_IF_ERROR(BeginDigests(job));
  }
  return LearnParents(job);
}

// The tensors of a save like the one before are put when the trainer has gone on.
Status AsyncCheckpointerImpl::LearnParents(SaveJob* job) {
  const bool is_known = saved_ != nullptr && saved_->layout == job->stage.layout() &&
                        job->session->IsComparedWith(*saved_->lists);
  if (is_known) {
    job->parent = saved_;
    job->stage.LearnParents(&job->parent->digests);
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(job->stage.PutInto(job->session.get()));
  job->session->ReadParents();
  return Status::Ok();
}

Status AsyncCheckpointerImpl::PutTensors(SaveJob* job) {
  VARVE_RETURN_IF_ERROR(job->stage.PutInto(job->session.get()));
  if (job->parent != nullptr && job->session->IsComparedWith(*job->parent->lists)) {
    job->session->UseParents(job->parent->lists);
  }
  return Status::Ok();
}

Status AsyncCheckpointerImpl::BeginDigests(SaveJob* job) {
  return job->stage.BeginDigests(*digest_seed_,
                                 {.waits_at_once = job->waits_at_once,
                                  .is_awaiting = [job] { return job->is_awaited.load(); }});
}

Status AsyncCheckpointerImpl::CommitStep(SaveJob* job) {
  VARVE_RETURN_IF_ERROR(job->stage.AwaitArrived());
  if (job->parent != nullptr) VARVE_RETURN_IF_ERROR(PutTensors(job));
  const Compression compression = ChooseCompression(*job);
  double seconds = 0;
  VARVE_ASSIGN_OR_RETURN(const SaveReport report, CommitStaged(job, compression, &seconds));
  job->stats.compression = compression;
  job->stats.durable_seconds = SecondsSince(job->begun);
  job->stats.logical_bytes = report.logical_bytes;
  job->stats.new_bytes = report.new_bytes;
  job->stats.stored_bytes = report.stored_bytes;
  AddNew(report.warnings, &job->stats.warnings);
  if (compression == options_.store.compression) {
    estimate_.Learn(job->stats.changed_bytes, report.stored_bytes, seconds);
  }
  return Status::Ok();
}

void AsyncCheckpointerImpl::KeepSaved(SaveJob* job) {
  saved_ = std::make_shared<const SavedStep>(SavedStep{.layout = job->stage.layout(),
                                                       .digests = job->stage.TakeDigests(),
                                                       .lists = job->session->saved_lists()});
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

SaveOptions AsyncCheckpointerImpl::OptionsOf(const SaveJob& job) const {
  const bool in_a_hurry = job.deadline.has_value();
  return {.run = options_.run,
          .on_existing = options_.on_existing,
          .num_threads = in_a_hurry ? tbb::info::default_concurrency() : num_threads_,
          .low_priority = !in_a_hurry};
}

// Retention keeps the step, and drops those before it one day.
bool AsyncCheckpointerImpl::Stays(uint64_t step) const {
  const uint64_t keep_every =
      options_.retention.has_value() ? options_.retention->keep_every : group_.keep_every;
  return keep_every > 1 && step % keep_every == 0;
}

Result<std::unique_ptr<SaveSession>> AsyncCheckpointerImpl::BeginOnce(const SaveJob& job) {
  VARVE_RETURN_IF_ERROR(PrepareLineage(job.step));
  const TrainingState& state = job.state->rest;
  SaveOptions options = OptionsOf(job);
  if (job.knows_steps && Stays(job.step)) {
    options.from_keyframes = true;
  } else if (job.step_before.has_value() && job.step == *job.step_before + 1) {
    const auto newest = store_->LatestStep(options_.run);
    if (newest.ok() && *newest == job.step_before) options.optimizer_step = state.optimizer_step;
  }
  VARVE_ASSIGN_OR_RETURN(auto session, SaveSession::Begin(store_.get(), job.step, options));
  for (const StateItem& item : state.items) {
    VARVE_ASSIGN_OR_RETURN(const std::string name, EncodeItemName({item.name, item.rank}));
    VARVE_RETURN_IF_ERROR(session->PutBytes(name, item.value));
  }
  VARVE_RETURN_IF_ERROR(session->SetTrainerProgress(state.trainer));
  if (state.topology) VARVE_RETURN_IF_ERROR(session->SetTopology(*state.topology));
  for (const auto& [name, value] : state.metrics) {
    VARVE_RETURN_IF_ERROR(session->SetMetric(name, value));
  }
  for (const std::string& tag : state.tags) VARVE_RETURN_IF_ERROR(session->AddTag(tag));
  session->SetCondition(job.may_commit);
  return session;
}

// Before a deadline, data is stored as it is when compressing it might take too long. That is
// decided on this rank alone, if it is one of many, so it is no part of the options of the save.
Compression AsyncCheckpointerImpl::ChooseCompression(const SaveJob& job) const {
  constexpr double kMargin = 2;  // estimates are of a machine that had other work, and may again
  const Compression usual = options_.store.compression;
  if (!job.deadline.has_value() || usual == Compression::kNone) return usual;
  const double left = -SecondsSince(*job.deadline);
  const bool takes_too_long = kMargin * estimate_.SecondsToEncode(job.stage.changed_bytes()) > left;
  return takes_too_long ? Compression::kNone : usual;
}

// Does not begin to write what will not fit.
Status AsyncCheckpointerImpl::CheckSpace(const SaveJob& job) const {
  return CheckFreeSpace(path_, path_.string(), "step " + std::to_string(job.step),
                        estimate_.BytesToStore(job.stage.changed_bytes()));
}

// Returns true if the caller should try again after this result. It has waited then.
bool AsyncCheckpointerImpl::ShouldRetry(const Status& status, int attempt) const {
  if (status.code() != StatusCode::kIOError || attempt > options_.retries) return false;
  if (group_.may_try_again && !group_.may_try_again()) return false;
  std::this_thread::sleep_for(std::chrono::seconds(1 << std::min(attempt - 1, 6)));
  return true;
}

Result<std::unique_ptr<SaveSession>> AsyncCheckpointerImpl::BeginSession(const SaveJob& job) {
  for (int attempt = 1;; ++attempt) {
    Result<std::unique_ptr<SaveSession>> session = BeginOnce(job);
    if (session.ok()) return session;
    if (!ShouldRetry(session.status(), attempt)) {
      return session.status().WithContext("saving step " + std::to_string(job.step));
    }
  }
}

// `seconds`: what the last attempt took.
Result<SaveReport> AsyncCheckpointerImpl::CommitStaged(SaveJob* job, Compression compression,
                                                       double* seconds) {
  for (int attempt = 1;; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    job->stats.attempts = attempt;
    job->session->SetCompression(compression);
    const Status space = CheckSpace(*job);
    Result<SaveReport> report = space.ok() ? job->session->Commit() : Result<SaveReport>(space);
    *seconds = SecondsSince(start);
    // What was not staged may have changed since.
    if (!job->stage.is_all_staged() || !ShouldRetry(report.status(), attempt)) return report;
    VARVE_ASSIGN_OR_RETURN(job->session, BeginSession(*job));
    VARVE_RETURN_IF_ERROR(PutTensors(job));
  }
}

Status AsyncCheckpointerImpl::ApplyRetention(SaveJob* job) {
  if (!options_.retention.has_value() || options_.retention->empty()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const auto checkpoints, store_->ListCheckpoints(options_.run));
  RetentionPolicy policy = *options_.retention;
  policy.keep_last = std::max<uint64_t>(policy.keep_last, 1);  // the step just saved
  VARVE_ASSIGN_OR_RETURN(const auto decisions, DecideRetention(policy, checkpoints));
  std::vector<CheckpointId> dropped = DroppedBy(decisions);
  if (pusher_ != nullptr && options_.remote->retention_waits) {
    std::erase_if(dropped, [&](const CheckpointId& id) { return pusher_->IsAwaited(id.step); });
  }
  if (dropped.empty()) return Status::Ok();
  const auto report = store_->Drop(dropped);
  // Another process may have asked for the same. What is left goes after the next save.
  if (report.status().code() == StatusCode::kNotFound) return Status::Ok();
  if (!report.ok()) return report.status().WithContext("dropping old steps");
  job->stats.dropped_steps = dropped.size();
  AddNew(report->warnings, &job->stats.warnings);
  return Status::Ok();
}

}  // namespace varve::internal
