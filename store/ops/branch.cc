// SPDX-License-Identifier: Apache-2.0
//
// Runs that branch. A fork is a real step record in a new run, and names the same lists. A rewind
// gives the records of the later steps to a new run. Neither touches a chunk. The cost is
// O(tensors) a step. The records go from the database to table files one by one, so memory does not
// grow with their number.
#include <memory>
#include <span>
#include <utility>

#include "base/util.h"
#include "store/db/store_impl.h"
#include "store/db/table_stream.h"

namespace varve::internal {

namespace {

// Returns the key of a record of a step with another run.
std::string WithRun(std::string_view key, RunId run) {
  std::string moved = keys::RunPrefix(run);
  return moved.append(key.substr(moved.size()));
}

// Writes two streams, because a moved key is deleted in its place and appears in a new run, whose
// keys are above all others.
class MoveStreams {
 public:
  MoveStreams(const Database* database, const std::filesystem::path& incoming, Family family)
      : here_(std::make_unique<TableStream>(database, incoming, family)),
        there_(std::make_unique<TableStream>(database, incoming, family)) {}

  TableStream* here() { return here_.get(); }
  TableStream* there() { return there_.get(); }
  Status Move(std::string_view key, RunId to, std::string_view value) {
    VARVE_RETURN_IF_ERROR(here_->Delete(key));
    return there_->Put(WithRun(key, to), value);
  }
  Status FinishInto(CommitBatch* batch) {
    VARVE_RETURN_IF_ERROR(here_->Finish());
    VARVE_RETURN_IF_ERROR(there_->Finish());
    batch->Add(std::move(here_));
    batch->Add(std::move(there_));
    return Status::Ok();
  }

 private:
  std::unique_ptr<TableStream> here_;
  std::unique_ptr<TableStream> there_;
};

bool HasMoved(const StepKey& step, const StepKey& first) {
  return step.run == first.run && step.step >= first.step;
}

// Returns true when the parent has moved. It is then named by its new run.
bool RenameParent(StepKey first, RunId to, StepRecord* record) {
  if (!record->parent.has_value() || !HasMoved(*record->parent, first)) return false;
  record->parent->run = to;
  return true;
}

Status ClaimToMove(ClaimedSteps* claimed, std::string_view run, RunId id,
                   const std::vector<uint64_t>& steps) {
  std::vector<StepKey> keys;
  for (const uint64_t step : steps) keys.push_back({id, step});
  const std::vector<StepKey> pinned = claimed->Claim(keys);
  if (pinned.empty()) return Status::Ok();
  return Status::FailedPrecondition(StepName(run, pinned[0].step) +
                                    " is the base of a save in progress; nothing was moved");
}

}  // namespace

Result<RunId> StoreImpl::NewRunId(CommitBatch* batch) const {
  VARVE_ASSIGN_OR_RETURN(const auto next, database_->Get(Family::kMeta, keys::kNextRun));
  const uint64_t id = next.has_value() ? DecodeNumber(*next).value_or(UINT64_MAX) : 1;
  if (id >= UINT32_MAX) return Status::Corruption("the store has no run ids left");
  batch->Put(Family::kMeta, std::string(keys::kNextRun), EncodeNumber(id + 1));
  return static_cast<RunId>(id);
}

Result<RunId> StoreImpl::NewRun(std::string_view name, std::optional<StepKey> forked_from,
                                CommitBatch* batch) const {
  VARVE_ASSIGN_OR_RETURN(const RunId id, NewRunId(batch));
  const RunRecord record{.id = id, .forked_from = forked_from};
  batch->Put(Family::kMeta, keys::Run(name), EncodeRunRecord(record));
  return id;
}

Result<uint64_t> StoreImpl::Fork(std::string_view run, std::string_view new_run,
                                 std::optional<uint64_t> at) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  VARVE_RETURN_IF_ERROR(ValidateRun(new_run));
  const auto lock = LockCommits();
  if (!at.has_value()) {
    VARVE_ASSIGN_OR_RETURN(at, LatestStep(run));
    if (!at.has_value()) return Status::NotFound("run " + std::string(run) + " has no steps");
  }
  VARVE_ASSIGN_OR_RETURN(auto found, RequireStep({std::string(run), *at}));
  auto& [from, record] = found;
  const Result<RunRecord> existing = FindRun(new_run);
  if (existing.ok()) return Status::AlreadyExists("there is a run " + std::string(new_run));
  if (existing.status().code() != StatusCode::kNotFound) return existing.status();

  CommitBatch batch;
  ReferenceCounts counts(database_.get());
  VARVE_ASSIGN_OR_RETURN(const RunId id, NewRun(new_run, from, &batch));
  const StepKey to{id, *at};
  VARVE_RETURN_IF_ERROR(
      CopyRecords(Family::kState, from, to, &batch, [](auto, auto) { return Status::Ok(); }));
  VARVE_RETURN_IF_ERROR(CopyRecords(
      Family::kTensors, from, to, &batch, [&](std::string_view, std::string_view value) -> Status {
        VARVE_ASSIGN_OR_RETURN(const TensorRecord tensor, DecodeTensorRecord(value));
        for (const ListAddress& list : tensor.lists) VARVE_RETURN_IF_ERROR(counts.AddList(list));
        return Status::Ok();
      }));
  record.parent = from;
  record.new_bytes = record.stored_bytes = 0;
  batch.Put(Family::kSteps, keys::Step(to), EncodeStepRecord(record));
  VARVE_RETURN_IF_ERROR(counts.WriteTo(&batch));
  VARVE_RETURN_IF_ERROR(CommitCounted(batch, counts, {}));
  return *at;
}

// Copies the records that a family has of a step, and shows each to `visit`.
Status StoreImpl::CopyRecords(Family family, StepKey from, StepKey to, CommitBatch* batch,
                              const Database::Visit& visit) const {
  auto stream = std::make_unique<TableStream>(database_.get(), incoming(), family);
  VARVE_RETURN_IF_ERROR(database_->Scan(
      family, keys::Step(from), [&](std::string_view key, std::string_view value) -> Status {
        VARVE_RETURN_IF_ERROR(visit(key, value));
        return stream->Put(WithRun(key, to.run), value);
      }));
  VARVE_RETURN_IF_ERROR(stream->Finish());
  batch->Add(std::move(stream));
  return Status::Ok();
}

Result<std::vector<uint64_t>> StoreImpl::StepsFrom(RunId run, uint64_t first) const {
  std::vector<uint64_t> steps;
  VARVE_RETURN_IF_ERROR(
      database_->ScanFrom(Family::kSteps, keys::RunPrefix(run), keys::Step({run, first}),
                          [&](std::string_view key, std::string_view) {
                            const auto step = keys::ParseStep(key);
                            if (!step.has_value())
                              return Status::Corruption("a malformed key in family steps");
                            steps.push_back(step->step);
                            return Status::Ok();
                          }));
  return steps;
}

// Puts into `batch` the records of all steps of a run from `first` on, moved to run `to`.
Status StoreImpl::CopyMoved(StepKey first, RunId to, bool holds_commits, CommitBatch* batch) const {
  VARVE_RETURN_IF_ERROR(database_->Heal());
  VARVE_RETURN_IF_ERROR(MoveRecords(Family::kState, first, to, holds_commits, batch));
  VARVE_RETURN_IF_ERROR(MoveRecords(Family::kTensors, first, to, holds_commits, batch));
  return MoveStepRecords(first, to, holds_commits, batch);
}

// Puts the rest of a move into `batch`: the run `moved`, its tags, and the origins of runs. Call it
// under the commit mutex. Returns the name of the run.
Result<std::string> StoreImpl::NameMoved(std::string_view run, StepKey first, RunId moved,
                                         CommitBatch* batch) const {
  std::string name;
  for (int k = 1; name.empty(); ++k) {
    std::string tried = std::string(run) + "~" + std::to_string(k);
    const Result<RunRecord> taken = FindRun(tried);
    if (taken.ok()) continue;
    if (taken.status().code() != StatusCode::kNotFound) return taken.status();
    name = std::move(tried);
  }
  // The fork's origin is the newest step that stays. If the run has no earlier step, there is no
  // origin, and step 0 stands for it.
  VARVE_ASSIGN_OR_RETURN(const auto origin, NewestStepBefore(first));
  const RunRecord record{.id = moved, .forked_from = StepKey{first.run, origin.value_or(0)}};
  batch->Put(Family::kMeta, keys::Run(name), EncodeRunRecord(record));
  VARVE_RETURN_IF_ERROR(RenameOrigins(first, moved, batch));
  VARVE_ASSIGN_OR_RETURN(const auto tags, ListTags(first.run));
  for (const auto& [tag, step] : tags) {
    if (step < first.step) continue;
    batch->Delete(Family::kMeta, keys::Tag(first.run, tag));
    batch->Put(Family::kMeta, keys::Tag(moved, tag), EncodeNumber(step));
  }
  return name;
}

Result<RunId> StoreImpl::MoveSteps(std::string_view run, StepKey first, CommitBatch* batch) const {
  VARVE_ASSIGN_OR_RETURN(const RunId moved, NewRunId(batch));
  VARVE_RETURN_IF_ERROR(CopyMoved(first, moved, /*holds_commits=*/true, batch));
  VARVE_RETURN_IF_ERROR(NameMoved(run, first, moved, batch).status());
  return moved;
}

// A commit that meets an error opens the database again, and waits until nobody reads it. A caller
// that holds the commit mutex keeps no commit waiting.
Status StoreImpl::CheckNotFailed(bool holds_commits) const {
  if (holds_commits || !database_->has_failed()) return Status::Ok();
  return Status::IOError(
      "another write failed while steps were moved; nothing was moved. Try again");
}

// Gives all records from a step of a run on to run `to`, unchanged.
Status StoreImpl::MoveRecords(Family family, StepKey first, RunId to, bool holds_commits,
                              CommitBatch* batch) const {
  MoveStreams streams(database_.get(), incoming(), family);
  VARVE_RETURN_IF_ERROR(
      database_->ScanFrom(family, keys::RunPrefix(first.run), keys::Step(first),
                          [&](std::string_view key, std::string_view value) -> Status {
                            VARVE_RETURN_IF_ERROR(CheckNotFailed(holds_commits));
                            return streams.Move(key, to, value);
                          }));
  return streams.FinishInto(batch);
}

// The same with the records of the steps. A step whose parent has moved names the parent by its new
// run.
Status StoreImpl::MoveStepRecords(StepKey first, RunId to, bool holds_commits,
                                  CommitBatch* batch) const {
  MoveStreams streams(database_.get(), incoming(), Family::kSteps);
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kSteps, "", [&](std::string_view key, std::string_view value) -> Status {
        VARVE_RETURN_IF_ERROR(CheckNotFailed(holds_commits));
        VARVE_ASSIGN_OR_RETURN(StepRecord record, DecodeStepRecord(value));
        const bool renamed = RenameParent(first, to, &record);
        const std::string changed = renamed ? EncodeStepRecord(record) : std::string();
        const auto step = keys::ParseStep(key);
        if (step.has_value() && HasMoved(*step, first)) {
          return streams.Move(key, to, renamed ? changed : value);
        }
        return renamed ? streams.here()->Put(key, changed) : Status::Ok();
      }));
  return streams.FinishInto(batch);
}

// Puts into `batch` the changes of step records since CopyMoved started to read them. Returns false
// when a step that moves was saved meanwhile, or steps were moved. Then everything must be copied
// again.
Result<bool> StoreImpl::FollowChanges(const StepChanges& changes, StepKey first, RunId to,
                                      CommitBatch* batch) const {
  if (changes.have_moved) return false;
  for (const auto& [step, was_saved] : changes.steps) {
    const bool moves = HasMoved(step, first);
    if (moves && was_saved) return false;
    VARVE_ASSIGN_OR_RETURN(auto record, FindStep(step));
    if (!record.has_value()) {
      batch->Delete(Family::kSteps, keys::Step(step));
      continue;
    }
    RenameParent(first, to, &*record);
    const StepKey place = moves ? StepKey{to, step.step} : step;
    batch->Put(Family::kSteps, keys::Step(place), EncodeStepRecord(*record));
  }
  return true;
}

// Runs that were forked from a moved step name it by its new run.
Status StoreImpl::RenameOrigins(StepKey first, RunId to, CommitBatch* batch) const {
  return database_->Scan(
      Family::kMeta, keys::kRunPrefix, [&](std::string_view key, std::string_view value) -> Status {
        VARVE_ASSIGN_OR_RETURN(RunRecord record, DecodeRunRecord(value));
        const auto& origin = record.forked_from;
        if (!origin.has_value() || origin->run != first.run || origin->step < first.step) {
          return Status::Ok();
        }
        record.forked_from->run = to;
        batch->Put(Family::kMeta, std::string(key), EncodeRunRecord(record));
        return Status::Ok();
      });
}

Status StoreImpl::Commit(const CommitBatch& batch, std::span<const std::filesystem::path> files) {
  ++num_commits_;
  if (step_changes_.has_value()) {
    const bool is_save = batch.Changes(Family::kTensors) || batch.Changes(Family::kState);
    step_changes_->have_moved |= batch.HasStream(Family::kSteps);
    batch.VisitHeldKeys(Family::kSteps, [&](std::string_view key) {
      const auto step = keys::ParseStep(key);
      if (step.has_value()) step_changes_->steps[*step] |= is_save;
    });
  }
  return batch.Commit(database_.get(), incoming(), files);
}

// Copies the records while other commits go on. `step_changes_` notes what these commits change.
// Then the commit mutex is held only to apply those changes.
Result<RewindReport> StoreImpl::Rewind(std::string_view run, uint64_t to) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  const std::lock_guard drops(drop_mutex_);
  StepKey first;
  {
    const auto lock = LockCommits();
    VARVE_ASSIGN_OR_RETURN(const auto found, RequireStep({std::string(run), to}));
    if (to == UINT64_MAX) return RewindReport{};
    first = {found.first.run, to + 1};
    step_changes_ = StepChanges{};
  }
  // This runs also when memory runs out. Until then commits note what they change.
  struct Unwatch {
    StoreImpl* store;
    ~Unwatch() {
      const auto lock = store->LockCommits();
      store->step_changes_.reset();
    }
  } const unwatch{this};
  return RewindWatched(run, first);
}

Result<RewindReport> StoreImpl::RewindWatched(std::string_view run, StepKey first) {
  RewindReport report;
  VARVE_ASSIGN_OR_RETURN(report.moved, StepsFrom(first.run, first.step));
  if (report.moved.empty()) return report;
  ClaimedSteps claimed(&pins_);
  VARVE_RETURN_IF_ERROR(ClaimToMove(&claimed, run, first.run, report.moved));
  RunId moved = 0;
  {
    const auto lock = LockCommits();
    CommitBatch batch;
    VARVE_ASSIGN_OR_RETURN(moved, NewRunId(&batch));
    VARVE_RETURN_IF_ERROR(Commit(batch));
  }
  auto batch = std::make_unique<CommitBatch>();
  VARVE_RETURN_IF_ERROR(CopyMoved(first, moved, /*holds_commits=*/false, batch.get()));
  if (after_copy_for_test_ != nullptr) after_copy_for_test_();
  const auto lock = LockCommits();
  VARVE_ASSIGN_OR_RETURN(const bool is_copied,
                         FollowChanges(*step_changes_, first, moved, batch.get()));
  if (!is_copied) {
    batch = std::make_unique<CommitBatch>();
    // A save that forks may have moved all of them, and also the step that was to stay.
    VARVE_RETURN_IF_ERROR(RequireStep({std::string(run), first.step - 1}).status());
    VARVE_ASSIGN_OR_RETURN(report.moved, StepsFrom(first.run, first.step));
    if (report.moved.empty()) return report;
    VARVE_RETURN_IF_ERROR(ClaimToMove(&claimed, run, first.run, report.moved));
    VARVE_RETURN_IF_ERROR(CopyMoved(first, moved, /*holds_commits=*/true, batch.get()));
  }
  VARVE_ASSIGN_OR_RETURN(report.fork, NameMoved(run, first, moved, batch.get()));
  VARVE_RETURN_IF_ERROR(Commit(*batch));
  return report;
}

}  // namespace varve::internal
