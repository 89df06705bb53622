// SPDX-License-Identifier: Apache-2.0
//
// Runs that branch. A fork is a real step record in a new run that names the same lists; a rewind
// gives the records of the later steps to a new run. Neither touches a chunk. O(tensors) a step.
// The records go from the database to table files one by one, so memory does not grow with their
// number.
#include <memory>
#include <utility>

#include "store/store_impl.h"
#include "store/table_stream.h"
#include "store/util.h"

namespace varve {
namespace {

// The key of a record of a step, with another run.
std::string WithRun(std::string_view key, RunId run) {
  std::string moved = keys::RunPrefix(run);
  return moved.append(key.substr(moved.size()));
}

// A key is changed where it lies and appears in a new run, whose keys are above all others: two
// streams.
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

}  // namespace

Result<RunId> StoreImpl::NewRun(std::string_view name, std::optional<StepKey> forked_from,
                                CommitBatch* batch) const {
  VARVE_ASSIGN_OR_RETURN(const auto next, database_->Get(Family::kMeta, keys::kNextRun));
  const uint64_t id = next.has_value() ? DecodeNumber(*next).value_or(UINT64_MAX) : 1;
  if (id >= UINT32_MAX) return Status::Corruption("the store has no run ids left");
  const RunRecord record{.id = static_cast<RunId>(id), .forked_from = forked_from};
  batch->Put(Family::kMeta, std::string(keys::kNextRun), EncodeNumber(id + 1));
  batch->Put(Family::kMeta, keys::Run(name), EncodeRunRecord(record));
  return record.id;
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

Result<StoreImpl::Moved> StoreImpl::MoveSteps(std::string_view run, StepKey first,
                                              CommitBatch* batch) const {
  Moved moved;
  for (int k = 1; moved.run.empty(); ++k) {
    std::string name = std::string(run) + "~" + std::to_string(k);
    const Result<RunRecord> taken = FindRun(name);
    if (taken.ok()) continue;
    if (taken.status().code() != StatusCode::kNotFound) return taken.status();
    moved.run = std::move(name);
  }
  // The fork's origin is the newest step that stays; a run that begins with what moves has none, and
  // step 0 stands for it.
  VARVE_ASSIGN_OR_RETURN(const auto origin, NewestStepBefore(first));
  VARVE_ASSIGN_OR_RETURN(moved.id,
                         NewRun(moved.run, StepKey{first.run, origin.value_or(0)}, batch));
  VARVE_RETURN_IF_ERROR(MoveRecords(Family::kState, first, moved.id, batch));
  VARVE_RETURN_IF_ERROR(MoveRecords(Family::kTensors, first, moved.id, batch));
  VARVE_RETURN_IF_ERROR(MoveStepRecords(first, moved.id, batch));
  VARVE_RETURN_IF_ERROR(RenameOrigins(first, moved.id, batch));
  VARVE_ASSIGN_OR_RETURN(const auto tags, ListTags(first.run));
  for (const auto& [tag, step] : tags) {
    if (step < first.step) continue;
    batch->Delete(Family::kMeta, keys::Tag(first.run, tag));
    batch->Put(Family::kMeta, keys::Tag(moved.id, tag), EncodeNumber(step));
  }
  return moved;
}

// Gives all records from a step of a run on to run `to`, as they are.
Status StoreImpl::MoveRecords(Family family, StepKey first, RunId to, CommitBatch* batch) const {
  MoveStreams streams(database_.get(), incoming(), family);
  VARVE_RETURN_IF_ERROR(database_->ScanFrom(
      family, keys::RunPrefix(first.run), keys::Step(first),
      [&](std::string_view key, std::string_view value) { return streams.Move(key, to, value); }));
  return streams.FinishInto(batch);
}

// The same with the records of the steps. Any step that names a moved one as its parent names it by
// its new run.
Status StoreImpl::MoveStepRecords(StepKey first, RunId to, CommitBatch* batch) const {
  const auto has_moved = [&](const StepKey& step) {
    return step.run == first.run && step.step >= first.step;
  };
  MoveStreams streams(database_.get(), incoming(), Family::kSteps);
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kSteps, "", [&](std::string_view key, std::string_view value) -> Status {
        VARVE_ASSIGN_OR_RETURN(StepRecord record, DecodeStepRecord(value));
        std::string renamed;
        if (record.parent.has_value() && has_moved(*record.parent)) {
          record.parent->run = to;
          renamed = EncodeStepRecord(record);
        }
        const auto step = keys::ParseStep(key);
        if (step.has_value() && has_moved(*step)) {
          return streams.Move(key, to, renamed.empty() ? value : renamed);
        }
        return renamed.empty() ? Status::Ok() : streams.here()->Put(key, renamed);
      }));
  return streams.FinishInto(batch);
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

Result<RewindReport> StoreImpl::Rewind(std::string_view run, uint64_t to) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  const std::lock_guard drops(drop_mutex_);
  const auto lock = LockCommits();
  VARVE_ASSIGN_OR_RETURN(const auto found, RequireStep({std::string(run), to}));
  if (to == UINT64_MAX) return RewindReport{};
  const StepKey first{found.first.run, to + 1};
  RewindReport report;
  VARVE_ASSIGN_OR_RETURN(report.moved, StepsFrom(first.run, first.step));
  if (report.moved.empty()) return report;
  std::vector<StepKey> claimed;
  for (const uint64_t step : report.moved) claimed.push_back({first.run, step});
  if (const auto pinned = pins_.BeginDrop(claimed); !pinned.empty()) {
    return Status::FailedPrecondition(StepName(run, pinned[0].step) +
                                      " is the base of a save in progress; nothing was moved");
  }
  const auto move = [&]() -> Status {
    CommitBatch batch;
    VARVE_ASSIGN_OR_RETURN(Moved moved, MoveSteps(run, first, &batch));
    report.fork = std::move(moved.run);
    return batch.Commit(database_.get(), incoming(), {});
  };
  const Status status = move();
  pins_.EndDrop(claimed);
  VARVE_RETURN_IF_ERROR(status);
  return report;
}

}  // namespace varve
