// SPDX-License-Identifier: Apache-2.0
//
// Runs that branch. A fork is a real step record in a new run that names the same lists; a rewind
// gives the records of the later steps to a new run. Neither touches a chunk. O(tensors) a step.
#include <algorithm>

#include "store/store_impl.h"
#include "store/util.h"

namespace varve {
namespace {

constexpr Family kStepFamilies[] = {Family::kSteps, Family::kState, Family::kTensors};

// Calls `visit(family, key below the step, value)` for all records of a step.
Status ScanStep(const Database& database, StepKey step,
                const std::function<Status(Family, std::string_view, std::string_view)>& visit) {
  const std::string prefix = keys::Step(step);
  for (const Family family : kStepFamilies) {
    VARVE_RETURN_IF_ERROR(
        database.Scan(family, prefix, [&](std::string_view key, std::string_view value) {
          return visit(family, key.substr(prefix.size()), value);
        }));
  }
  return Status::Ok();
}

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
  VARVE_RETURN_IF_ERROR(ScanStep(
      *database_, from,
      [&](Family family, std::string_view rest, std::string_view value) -> Status {
        batch.Put(family, keys::Step(to).append(rest), std::string(value));
        if (family != Family::kTensors) return Status::Ok();
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

Result<StoreImpl::Moved> StoreImpl::MoveSteps(std::string_view run, RunId id, uint64_t first,
                                              CommitBatch* batch) const {
  Moved moved;
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kSteps, keys::RunPrefix(id), [&](std::string_view key, std::string_view) {
        const auto step = keys::ParseStep(key);
        if (!step.has_value()) return Status::Corruption("a malformed key in family steps");
        if (step->step >= first) moved.steps.push_back(step->step);
        return Status::Ok();
      }));
  if (moved.steps.empty()) return moved;
  for (int k = 1; moved.run.empty(); ++k) {
    std::string name = std::string(run) + "~" + std::to_string(k);
    const Result<RunRecord> taken = FindRun(name);
    if (taken.ok()) continue;
    if (taken.status().code() != StatusCode::kNotFound) return taken.status();
    moved.run = std::move(name);
  }
  // The fork's origin is the newest step that stays; a run that begins with what moves has none, and
  // step 0 stands for it.
  std::optional<StepKey> origin;
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kSteps, keys::RunPrefix(id), [&](std::string_view key, std::string_view) {
        const auto step = keys::ParseStep(key);
        if (step.has_value() && step->step < first) origin = step;
        return Status::Ok();
      }));
  VARVE_ASSIGN_OR_RETURN(moved.id, NewRun(moved.run, origin.value_or(StepKey{id, 0}), batch));

  for (const uint64_t step : moved.steps) {
    const StepKey from{id, step}, to{moved.id, step};
    VARVE_RETURN_IF_ERROR(ScanStep(
        *database_, from, [&](Family family, std::string_view rest, std::string_view value) {
          batch->Put(family, keys::Step(to).append(rest), std::string(value));
          batch->Delete(family, keys::Step(from).append(rest));
          return Status::Ok();
        }));
  }
  VARVE_ASSIGN_OR_RETURN(const auto tags, ListTags(id));
  for (const auto& [tag, step] : tags) {
    if (step < first) continue;
    batch->Delete(Family::kMeta, keys::Tag(id, tag));
    batch->Put(Family::kMeta, keys::Tag(moved.id, tag), EncodeNumber(step));
  }
  VARVE_RETURN_IF_ERROR(RenameParents(id, first, moved, batch));
  return moved;
}

// Whoever names a moved step as its parent or origin names it by its new run.
Status StoreImpl::RenameParents(RunId id, uint64_t first, const Moved& moved,
                                CommitBatch* batch) const {
  const auto has_moved = [&](const std::optional<StepKey>& step) {
    return step.has_value() && step->run == id && step->step >= first;
  };
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kSteps, "", [&](std::string_view key, std::string_view value) -> Status {
        VARVE_ASSIGN_OR_RETURN(StepRecord record, DecodeStepRecord(value));
        if (!has_moved(record.parent)) return Status::Ok();
        record.parent->run = moved.id;
        std::string target(key);
        if (const auto step = keys::ParseStep(key); has_moved(step)) {
          target = keys::Step({moved.id, step->step});
        }
        batch->Put(Family::kSteps, std::move(target), EncodeStepRecord(record));
        return Status::Ok();
      }));
  return database_->Scan(
      Family::kMeta, keys::kRunPrefix, [&](std::string_view key, std::string_view value) -> Status {
        VARVE_ASSIGN_OR_RETURN(RunRecord record, DecodeRunRecord(value));
        if (!has_moved(record.forked_from)) return Status::Ok();
        record.forked_from->run = moved.id;
        batch->Put(Family::kMeta, std::string(key), EncodeRunRecord(record));
        return Status::Ok();
      });
}

Result<RewindReport> StoreImpl::Rewind(std::string_view run, uint64_t to) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  const std::lock_guard drops(drop_mutex_);
  const auto lock = LockCommits();
  VARVE_ASSIGN_OR_RETURN(const auto found, RequireStep({std::string(run), to}));
  CommitBatch batch;
  if (to == UINT64_MAX) return RewindReport{};
  const RunId id = found.first.run;
  VARVE_ASSIGN_OR_RETURN(Moved moved, MoveSteps(run, id, to + 1, &batch));
  if (moved.steps.empty()) return RewindReport{};
  std::vector<StepKey> claimed;
  for (const uint64_t step : moved.steps) claimed.push_back({id, step});
  if (const auto pinned = pins_.BeginDrop(claimed); !pinned.empty()) {
    return Status::FailedPrecondition(StepName(run, pinned[0].step) +
                                      " is the base of a save in progress; nothing was moved");
  }
  const Status status = batch.Commit(database_.get(), incoming(), {});
  pins_.EndDrop(claimed);
  VARVE_RETURN_IF_ERROR(status);
  return RewindReport{std::move(moved.run), std::move(moved.steps)};
}

}  // namespace varve
