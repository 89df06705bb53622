// SPDX-License-Identifier: Apache-2.0
//
// The list of checkpoints of a damaged store, as far as it can be read.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/util.h"
#include "store/db/store_impl.h"
#include "store/ops/step_verifier.h"

namespace varve::internal {

namespace {

class KnownList {
 public:
  explicit KnownList(const StoreImpl* store) : store_(store), db_(store->database()) {}

  Status Find() {
    std::set<StepKey> steps;
    VARVE_RETURN_IF_ERROR(AddAllSteps(*db_, &steps));
    // Where these cannot be scanned there may be more steps, runs and tags than are known.
    for (const Family family : {Family::kSteps, Family::kMeta}) {
      const auto none = [](std::string_view, std::string_view) { return Status::Ok(); };
      VARVE_RETURN_IF_ERROR(Note(db_->Scan(family, "", none)));
    }
    for (const StepKey& step : steps) VARVE_RETURN_IF_ERROR(Add(step));
    return Status::Ok();
  }

  KnownCheckpoints Take() { return std::move(known_); }

 private:
  Status Add(StepKey step) {
    VARVE_ASSIGN_OR_RETURN(const std::string run, NameOf(step.run));
    const auto record = store_->FindStep(step);
    if (IsShortage(record.status())) return record.status();
    if (!record.ok() || !record->has_value()) {
      const std::string why = record.ok() ? "" : ": " + record.status().message();
      known_.errors.push_back(StepName(run, step.step) + ": its record is lost" + why);
      return Status::Ok();
    }
    Result<CheckpointInfo> info = store_->MakeInfo(run, step, **record, &names_);
    if (!info.ok()) {  // the name of its parent's run is lost
      VARVE_RETURN_IF_ERROR(Note(info.status()));
      StepRecord without_parent = **record;
      without_parent.parent.reset();
      info = store_->MakeInfo(run, step, without_parent, &names_);
    }
    if (info.ok()) {
      const auto tags = store_->TagsOf(step);
      VARVE_RETURN_IF_ERROR(Note(tags.status()));
      if (tags.ok()) info->tags = *tags;
      known_.checkpoints.push_back(*std::move(info));
    }
    return Status::Ok();
  }

  Result<std::string> NameOf(RunId run) {
    const Result<std::string> name = names_.Find(run);
    VARVE_RETURN_IF_ERROR(Note(name.status()));
    return name.ok() && !name->empty() ? *name : "#" + std::to_string(run);
  }

  // Adds an error to the list, once. Returns it if it says nothing about the store.
  Status Note(const Status& status) {
    if (status.ok() || IsShortage(status)) return status;
    if (noted_.insert(status.message()).second) known_.errors.push_back(status.message());
    return Status::Ok();
  }

  const StoreImpl* const store_;
  const Database* const db_;
  StoreImpl::RunNames names_{store_};
  std::set<std::string> noted_;
  KnownCheckpoints known_;
};

}  // namespace

Result<KnownCheckpoints> StoreImpl::ListKnownCheckpoints() const {
  VARVE_RETURN_IF_ERROR(Refresh());
  KnownList list(this);
  VARVE_RETURN_IF_ERROR(list.Find());
  return list.Take();
}

}  // namespace varve::internal
