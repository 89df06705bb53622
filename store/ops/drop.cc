// SPDX-License-Identifier: Apache-2.0
//
// Drops steps. For each group of steps, one atomic commit removes records and lowers counts. Other
// commits have their turn between two groups. Frames are not touched here. They are dead from then
// on, and reclaim.cc frees their space.
#include <algorithm>
#include <map>

#include "base/util.h"
#include "store/db/store_impl.h"
#include "store/db/writer_files.h"

namespace varve::internal {

namespace {

// A group is closed at this many bytes of changes. A commit costs an ingest and a table file in
// each family, however few steps it drops. So groups grow while no other commit comes in between.
// One that was built in vain is built anew with the fewest bytes, which are soon built under the
// commit mutex, too.
constexpr uint64_t kLeastGroupBytes = uint64_t{128} << 10;
constexpr uint64_t kMostGroupBytes = uint64_t{4} << 20;

}  // namespace

Status StoreImpl::ReleaseStep(StepKey step, ReferenceCounts* counts, CommitBatch* batch) const {
  const std::string prefix = keys::Step(step);
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kTensors, prefix, [&](std::string_view key, std::string_view value) -> Status {
        batch->Delete(Family::kTensors, std::string(key));
        const Result<TensorRecord> record = DecodeTensorRecord(value);
        if (!record.ok()) {
          counts->NoteDamage(DescribeDamagedTensor(key, record.status()));
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

// Returns all steps, each once, in order. kNotFound names every missing one.
Result<std::vector<StepKey>> StoreImpl::FindSteps(std::span<const CheckpointId> ids) const {
  std::vector<StepKey> steps;
  std::string missing;
  for (const CheckpointId& id : ids) {
    const Result<RunRecord> run = FindRun(id.run);
    if (!run.ok() && run.status().code() != StatusCode::kNotFound) return run.status();
    std::optional<std::string> record;  // a malformed one may be dropped
    if (run.ok()) {
      VARVE_ASSIGN_OR_RETURN(record,
                             database_->Get(Family::kSteps, keys::Step({run->id, id.step})));
    }
    if (record.has_value()) {
      steps.push_back({run->id, id.step});
    } else {
      AddStepName(id.run, id.step, &missing);
    }
  }
  if (!missing.empty()) return Status::NotFound("no " + missing + "; nothing was dropped");
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

// Looks for the steps before it claims them, because a missing one cannot be claimed. It looks
// again afterwards, because a save that forks their run may have moved them meanwhile. Once they
// are claimed, no save moves them.
Result<std::vector<StepKey>> StoreImpl::ClaimForDrop(std::span<const CheckpointId> ids,
                                                     ClaimedSteps* claimed) {
  VARVE_ASSIGN_OR_RETURN(std::vector<StepKey> steps, FindSteps(ids));
  std::string pinned;
  for (const StepKey& key : claimed->Claim(steps)) {
    VARVE_ASSIGN_OR_RETURN(const std::string run, RunName(key.run));
    AddStepName(run, key.step, &pinned);
  }
  if (!pinned.empty()) {
    return Status::FailedPrecondition(pinned + ": base of a save in progress; nothing was dropped");
  }
  { const auto commits_before = LockCommits(); }
  const Result<std::vector<StepKey>> still = FindSteps(ids);
  if (still.ok() && *still == steps) return steps;
  return still.ok() ? Status::NotFound("the steps have changed meanwhile; nothing was dropped")
                    : still.status();
}

Status StoreImpl::DropAll(std::span<const StepKey> steps, std::vector<std::string>* warnings) {
  uint64_t group_bytes = kLeastGroupBytes;
  while (!steps.empty()) VARVE_RETURN_IF_ERROR(DropSome(&group_bytes, &steps, warnings));
  return Status::Ok();
}

// Drops the first group of the steps. `*group_bytes` is its size, and becomes that of the next.
Status StoreImpl::DropSome(uint64_t* group_bytes, std::span<const StepKey>* steps,
                           std::vector<std::string>* warnings) {
  size_t n = 0;
  int tries = 0;
  std::vector<std::string> damage;
  VARVE_RETURN_IF_ERROR(CommitBuilt([&](ReferenceCounts* counts, CommitBatch* batch) -> Status {
    if (++tries > 1) *group_bytes = kLeastGroupBytes;
    for (n = 0; n < steps->size() && batch->num_bytes() < *group_bytes;) {
      const StepKey step = (*steps)[n++];
      VARVE_ASSIGN_OR_RETURN(const auto tags, TagsOf(step));
      for (const std::string& tag : tags) batch->Delete(Family::kMeta, keys::Tag(step.run, tag));
      VARVE_RETURN_IF_ERROR(ReleaseStep(step, counts, batch));
    }
    VARVE_RETURN_IF_ERROR(counts->WriteTo(batch));
    damage.assign(counts->damage().begin(), counts->damage().end());
    return Status::Ok();
  }));
  if (tries == 1) *group_bytes = std::min(2 * *group_bytes, kMostGroupBytes);
  NoteCommit();
  warnings->insert(warnings->end(), damage.begin(), damage.end());
  *steps = steps->subspan(n);
  return Status::Ok();
}

// A batch follows from what it has read. So it may be built and written while other commits go on,
// and is thrown away if there was one. The last try holds the commit mutex throughout, and so does
// a try on a full disk, which needs the reserve.
Status StoreImpl::CommitBuilt(const Build& build) {
  constexpr int kTriesBeside = 3;
  for (int tries = 0;; ++tries) {
    auto lock = LockCommits();
    const uint64_t seen = num_commits_;
    const bool is_beside = tries < kTriesBeside;
    if (is_beside) lock.unlock();
    CommitBatch batch;
    ReferenceCounts counts(database_.get());
    Status status = build(&counts, &batch);
    if (is_beside) {
      if (status.ok()) status = batch.Write(database_.get(), incoming());
      if (before_commit_for_test_ != nullptr) before_commit_for_test_();
      if (IsNoSpace(status)) tries = kTriesBeside - 1;
      lock.lock();
      if (num_commits_ != seen || IsNoSpace(status)) continue;
    }
    VARVE_RETURN_IF_ERROR(status);
    return CommitFreeing(batch, counts);
  }
}

// The reserve is what makes dropping possible on a full disk.
Status StoreImpl::CommitFreeing(const CommitBatch& batch, const ReferenceCounts& counts) {
  Status status = CommitCounted(batch, counts, {});
  if (!IsNoSpace(status)) return status;
  ReleaseReserve(path_);
  VARVE_RETURN_IF_ERROR(database_->Heal());
  return CommitCounted(batch, counts, {});
}

// A fork without a step is useless. Other runs stay, and keep their names.
Status StoreImpl::RemoveEmptyForks(std::span<const StepKey> dropped) {
  const auto lock = LockCommits();
  std::set<RunId> candidates;
  for (const StepKey& step : dropped) candidates.insert(step.run);
  for (auto run = candidates.begin(); run != candidates.end();) {
    VARVE_ASSIGN_OR_RETURN(const auto left, NewestStep(*run));
    run = left.has_value() ? candidates.erase(run) : std::next(run);
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
  return Commit(batch);
}

Result<DropReport> StoreImpl::Drop(std::span<const CheckpointId> ids, const DropOptions& options) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  DropReport report;
  const uint64_t disk_before = MeasureFolder(path_).allocated_bytes;
  {
    const std::lock_guard drops(drop_mutex_);
    ClaimedSteps claimed(&pins_);
    VARVE_ASSIGN_OR_RETURN(const std::vector<StepKey> steps, ClaimForDrop(ids, &claimed));
    VARVE_RETURN_IF_ERROR(DropAll(steps, &report.warnings));
    VARVE_RETURN_IF_ERROR(RemoveEmptyForks(steps));
  }
  std::set<std::pair<std::string_view, uint64_t>> told;
  for (const CheckpointId& id : ids) {  // each once, in the caller's order
    if (told.emplace(id.run, id.step).second) report.dropped.push_back(id);
  }
  std::optional<ReclaimReport> reclaimed;
  if (options.reclaim) {
    auto result = ReclaimUnlessUnderWay();
    if (!result.ok()) {
      return result.status().WithContext("the steps are dropped, but their space is not back");
    }
    reclaimed = *result;
  }
  if (reclaimed.has_value()) {
    report.reclaim = *reclaimed;
  } else {
    VARVE_ASSIGN_OR_RETURN(report.reclaim.pending_bytes, DeadBytes());
    report.reclaim.disk_bytes_after = MeasureFolder(path_).allocated_bytes;
  }
  report.reclaim.disk_bytes_before = disk_before;
  const Status reserve = EnsureReserve(path_);  // not there yet while the disk stays full
  reserve.IgnoreError();
  return report;
}

}  // namespace varve::internal
