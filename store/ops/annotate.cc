// SPDX-License-Identifier: Apache-2.0
// Metrics and tags that come after the save. Each is one small commit of its own.
#include "base/util.h"
#include "store/db/store_impl.h"

namespace varve::internal {

Result<std::pair<StepKey, StepRecord>> StoreImpl::RequireStep(const CheckpointId& id) const {
  VARVE_ASSIGN_OR_RETURN(const RunRecord run, FindRun(id.run));
  const StepKey key{run.id, id.step};
  VARVE_ASSIGN_OR_RETURN(auto record, FindStep(key));
  if (!record.has_value()) return Status::NotFound("no " + StepName(id.run, id.step));
  return std::pair(key, *std::move(record));
}

Status StoreImpl::SetMetrics(const CheckpointId& id, const std::map<std::string, double>& metrics) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  for (const auto& [name, value] : metrics)
    VARVE_RETURN_IF_ERROR(ValidateName("metric name", name));
  const auto lock = LockCommits();
  VARVE_ASSIGN_OR_RETURN(auto found, RequireStep(id));
  auto& [key, record] = found;
  for (const auto& [name, value] : metrics) record.metrics[name] = value;
  CommitBatch batch;
  batch.Put(Family::kSteps, keys::Step(key), EncodeStepRecord(record));
  return Commit(batch);
}

Status StoreImpl::SetTag(const CheckpointId& id, std::string_view tag) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  VARVE_RETURN_IF_ERROR(ValidateTag(tag));
  const auto lock = LockCommits();
  VARVE_ASSIGN_OR_RETURN(const auto found, RequireStep(id));
  CommitBatch batch;
  batch.Put(Family::kMeta, keys::Tag(found.first.run, tag), EncodeNumber(id.step));
  return Commit(batch);
}

Status StoreImpl::RemoveTag(std::string_view run, std::string_view tag) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  const auto lock = LockCommits();
  VARVE_RETURN_IF_ERROR(FindTag(run, tag).status());
  VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
  CommitBatch batch;
  batch.Delete(Family::kMeta, keys::Tag(found.id, tag));
  return Commit(batch);
}

}  // namespace varve::internal
