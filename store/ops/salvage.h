// SPDX-License-Identifier: Apache-2.0
//
// The steps of a damaged store, and which of them can be read whole from where. A step is tried in
// each view of the damaged store (store/db/salvage_view.h), then in a backup. The backup comes
// first for a save that it has, too, if the view may lack something of its state. Thread rule: one
// thread at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/db/salvage_view.h"
#include "store/db/store_impl.h"
#include "store/ops/step_verifier.h"
#include "varve/repair.h"

namespace varve::internal {

struct SalvageSource {
  std::unique_ptr<StoreImpl> store;
  std::vector<DamagedTable> left_out;  // tables that the store lacks
  std::unique_ptr<StepVerifier> verifier;
  // Of an object store. Returns the error if it did not answer. What could not be read then is not
  // lost. Unset: the store lies in a folder.
  std::function<Status()> health{};
};

class Salvage {
 public:
  // `views` are of one damaged store. The first one has most tables. `damaged` are all its damaged
  // tables. `backup.store` may be null. `name_hints` name runs whose names are lost, if they are
  // right.
  Salvage(std::vector<SalvageSource> views, SalvageSource backup, bool is_backup_of_this_store,
          std::vector<DamagedTable> damaged, std::map<RunId, std::string> name_hints,
          const RepairOptions& options, RepairReport* report);

  // Call it before Find if the newest state of the damaged store may be lost. Then steps of the
  // backup that were saved after all that the views know are taken, too. `is_later`: the backup
  // holds a later state than the views. Then such steps take the place of earlier saves, and the
  // backup's tags and metrics count.
  void TakeNewerStepsOfBackup(bool is_later) {
    takes_newer_steps_ = true;
    backup_is_later_ = is_later;
  }
  // Finds runs and steps.
  Status Find();
  // Reads every step, and fills the report.
  Status VerifyAll();
  // Saves every step that can be read in `to`, a store without steps, and fills the report.
  Status SaveAll(StoreImpl* to);

 private:
  struct Run {
    std::string name;
    std::optional<StepKey> forked_from;
  };
  struct TakenPart {
    SalvageSource* source = nullptr;
    std::string run;
  };
  // Takes a step from a source. `faults` says why it could not, unless there is an error.
  using Take = std::function<Status(SalvageSource& source, StepKey step, StepFaults* faults)>;

  Status FindRuns();
  void AddStepsOfLostTables();
  Status FindBackupSteps();
  Status FindNewerSteps(const std::set<StepKey>& there);
  void NameRuns();
  Status TakeAll(const Take& take);
  Status TakeStep(StepKey step, const Take& take);
  Status TakePart(StepKey step, bool may_take_from_backup, RepairReport::LostStep* lost);
  Status SavePart(SalvageSource& source, StepKey step, const StepPart& part,
                  const std::string& run);
  const std::string& DamagedRunOf(RunId run);
  Result<bool> MayTakeFromBackup(StepKey step);
  Result<bool> IsWholeInBackup(const SalvageSource& view, StepKey step) const;
  Status Save(SalvageSource& source, StepKey step, StepFaults* faults);
  Status PutRuns();
  Status PutRest();
  Status PutOwnRecord(SalvageSource& source, StepKey step, StepKey there, CommitBatch* batch) const;
  Status LoadTags();
  std::vector<std::string> DoubtsOf(const SalvageSource& source, StepKey step) const;
  bool IsDamaged(Family family) const;
  Status CheckBackup() const { return backup_.health ? backup_.health() : Status::Ok(); }
  std::string LostIn(Family family, StepKey step) const;
  void AddWarnings();
  void ShowProgress(uint64_t more) const;
  bool HasLaterSaves() const { return backup_is_later_ && !newer_steps_.empty(); }
  const std::string& NameOf(RunId run) const { return runs_.at(run).name; }
  Result<StepRecord> OwnRecord(SalvageSource& source, StepKey step) const;

  std::vector<SalvageSource> views_;
  SalvageSource backup_;
  const bool is_backup_of_this_store_;
  const std::vector<DamagedTable> damaged_;
  const std::map<RunId, std::string> name_hints_;
  const RepairOptions& options_;
  RepairReport* const report_;
  StoreImpl* to_ = nullptr;

  bool takes_newer_steps_ = false;
  bool backup_is_later_ = false;

  std::map<RunId, Run> runs_;
  RunId next_run_ = 1;
  std::set<StepKey> steps_;
  std::set<StepKey> newer_steps_;              // saved after all that the views know, by the backup
  std::map<StepKey, SalvageSource*> taken_;    // where each kept step was read
  std::map<StepKey, TakenPart> taken_parts_;   // of steps that are lost
  std::map<RunId, std::string> damaged_runs_;  // the runs of parts, by the run of the steps
  std::map<StepKey, std::set<std::string>> tags_;
  uint64_t total_bytes_ = 0, done_bytes_ = 0;
};

}  // namespace varve::internal
