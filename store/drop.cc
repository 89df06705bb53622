// SPDX-License-Identifier: Apache-2.0
//
// Dropping steps: records go and counts fall in one atomic commit a group of steps. Frames are not
// touched here; they are dead from now on, and reclaim.cc gives their space back.
#include <algorithm>

#include "store/store_impl.h"
#include "store/util.h"

namespace varve {
namespace {

// A group is closed at this many bytes of changes: bounded memory, and one ingest for many steps.
constexpr uint64_t kGroupBytes = uint64_t{4} << 20;

}  // namespace

Status StoreImpl::ReleaseStep(StepKey step, ReferenceCounts* counts, CommitBatch* batch) const {
  const std::string prefix = keys::Step(step);
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kTensors, prefix, [&](std::string_view key, std::string_view value) -> Status {
        batch->Delete(Family::kTensors, std::string(key));
        const Result<TensorRecord> record = DecodeTensorRecord(value);
        if (!record.ok()) {
          const auto parsed = keys::ParseTensor(key);
          counts->NoteDamage("tensor " + std::string(parsed.has_value() ? parsed->name : "?") +
                             " of step " + std::to_string(step.step) + ": " +
                             record.status().message());
          return Status::Ok();
        }
        for (const ListAddress& list : record->lists) {
          VARVE_RETURN_IF_ERROR(counts->ReleaseList(list, batch));
        }
        return Status::Ok();
      }));
  VARVE_RETURN_IF_ERROR(
      database_->Scan(Family::kState, prefix, [&](std::string_view key, std::string_view) {
        batch->Delete(Family::kState, std::string(key));
        return Status::Ok();
      }));
  batch->Delete(Family::kSteps, prefix);
  return Status::Ok();
}

// All steps, each once, in their order; kNotFound names every one that is missing.
Result<std::vector<StepKey>> StoreImpl::FindSteps(std::span<const CheckpointId> ids) const {
  std::vector<StepKey> steps;
  std::string missing;
  for (const CheckpointId& id : ids) {
    const Result<RunRecord> run = FindRun(id.run);
    if (!run.ok() && run.status().code() != StatusCode::kNotFound) return run.status();
    std::optional<std::string> record;  // a malformed one may be dropped
    if (run.ok()) {
      VARVE_ASSIGN_OR_RETURN(record, database_->Get(Family::kSteps, keys::Step({run->id, id.step})));
    }
    if (record.has_value()) {
      steps.push_back({run->id, id.step});
    } else {
      missing += (missing.empty() ? "" : ", ") + StepName(id.run, id.step);
    }
  }
  if (!missing.empty()) return Status::NotFound("no " + missing + "; nothing was dropped");
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

Result<std::vector<StepKey>> StoreImpl::ClaimForDrop(std::span<const CheckpointId> ids) {
  VARVE_ASSIGN_OR_RETURN(std::vector<StepKey> steps, FindSteps(ids));
  std::string pinned;
  for (const StepKey& key : pins_.BeginDrop(steps)) {
    VARVE_ASSIGN_OR_RETURN(const std::string run, RunName(key.run));
    pinned += (pinned.empty() ? "" : ", ") + StepName(run, key.step);
  }
  if (!pinned.empty()) {
    return Status::FailedPrecondition(pinned +
                                      ": base of a save in progress; nothing was dropped");
  }
  return steps;
}

// Drops group by group.
Status StoreImpl::DropAll(std::span<const StepKey> steps, std::vector<std::string>* warnings) {
  while (!steps.empty()) {
    CommitBatch batch;
    ReferenceCounts counts(database_.get());
    size_t n = 0;
    while (n < steps.size() && batch.num_bytes() < kGroupBytes) {
      VARVE_ASSIGN_OR_RETURN(const auto tags, TagsOf(steps[n]));
      for (const std::string& tag : tags) {
        batch.Delete(Family::kMeta, keys::Tag(steps[n].run, tag));
      }
      VARVE_RETURN_IF_ERROR(ReleaseStep(steps[n++], &counts, &batch));
    }
    VARVE_RETURN_IF_ERROR(counts.WriteTo(&batch));
    Status status = batch.Commit(database_.get(), incoming(), {});
    if (IsNoSpace(status)) {
      // The reserve is what makes dropping possible on a full disk.
      ReleaseReserve();
      status = database_->Heal();
      if (status.ok()) status = batch.Commit(database_.get(), incoming(), {});
    }
    VARVE_RETURN_IF_ERROR(status);
    NoteCommit(counts.births_with_dead());
    warnings->insert(warnings->end(), counts.damage().begin(), counts.damage().end());
    steps = steps.subspan(n);
  }
  return Status::Ok();
}

// A fork without a step is of no use to anyone; other runs stay, and with them their names.
Status StoreImpl::RemoveEmptyForks(std::span<const StepKey> dropped) const {
  std::set<RunId> runs, candidates;
  for (const StepKey& step : dropped) runs.insert(step.run);
  for (const RunId run : runs) {
    VARVE_ASSIGN_OR_RETURN(const auto left, NewestStep(run));
    if (!left.has_value()) candidates.insert(run);
  }
  if (candidates.empty()) return Status::Ok();
  CommitBatch batch;
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kMeta, keys::kRunPrefix, [&](std::string_view key, std::string_view value) -> Status {
        VARVE_ASSIGN_OR_RETURN(const RunRecord run, DecodeRunRecord(value));
        if (run.forked_from.has_value() && candidates.contains(run.id)) {
          batch.Delete(Family::kMeta, std::string(key));
        }
        return Status::Ok();
      }));
  return batch.Commit(database_.get(), incoming(), {});
}

Result<DropReport> StoreImpl::Drop(std::span<const CheckpointId> ids, const DropOptions& options) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  DropReport report;
  const uint64_t disk_before = MeasureFolder(path_).allocated_bytes;
  {
    const auto lock = LockCommits();
    VARVE_ASSIGN_OR_RETURN(const std::vector<StepKey> steps, ClaimForDrop(ids));
    Status dropped = DropAll(steps, &report.warnings);
    if (dropped.ok()) dropped = RemoveEmptyForks(steps);
    pins_.EndDrop(steps);
    VARVE_RETURN_IF_ERROR(dropped);
  }
  std::set<std::pair<std::string_view, uint64_t>> told;
  for (const CheckpointId& id : ids) {  // each once, in the caller's order
    if (told.emplace(id.run, id.step).second) report.dropped.push_back(id);
  }
  if (options.reclaim) {
    Result<ReclaimReport> reclaimed = Reclaim({});
    if (!reclaimed.ok()) {
      return reclaimed.status().WithContext("the steps are dropped, but their space is not back");
    }
    report.reclaim = *reclaimed;
  } else {
    VARVE_ASSIGN_OR_RETURN(report.reclaim.pending_bytes, PendingBytes());
    report.reclaim.disk_bytes_after = MeasureFolder(path_).allocated_bytes;
  }
  report.reclaim.disk_bytes_before = disk_before;
  const Status reserve = EnsureReserve();  // not there yet while the disk stays full
  reserve.IgnoreError();
  return report;
}

}  // namespace varve
