// SPDX-License-Identifier: Apache-2.0
//
// The new store has the runs of the damaged one under the same numbers. So parents and origins of
// steps are copied as they are, also where they name steps that are gone.
#include "store/ops/salvage.h"

#include <algorithm>
#include <utility>

#include "base/stop.h"
#include "base/util.h"
#include "store/ops/copy.h"
#include "store/read/sharded_reader.h"

namespace varve::internal {

namespace {

// Returns at most so many bytes of a text in UTF-8, and no part of a character.
std::string FirstBytes(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

bool IsOf(const DamagedTable& table, Family family) {
  return table.family == kFamilyNames[static_cast<int>(family)];
}

// True when a table may hold keys that start with those of a step.
bool MayHoldKeysOf(const DamagedTable& table, StepKey step) {
  const std::string prefix = keys::Step(step);
  return Overlaps(table.first_key, table.last_key, prefix, keys::PrefixEnd(prefix));
}

Status VisitRuns(const Database& db, const std::function<void(std::string, RunRecord)>& visit) {
  return db.Scan(Family::kMeta, keys::kRunPrefix,
                 [&](std::string_view key, std::string_view value) -> Status {
                   Result<RunRecord> record = DecodeRunRecord(value);
                   if (record.ok()) {
                     visit(std::string(keys::ParseRun(key).value_or("")), *std::move(record));
                   }
                   return Status::Ok();
                 });
}

}  // namespace

Salvage::Salvage(std::vector<SalvageSource> views, SalvageSource backup,
                 bool is_backup_of_this_store, std::vector<DamagedTable> damaged,
                 std::map<RunId, std::string> name_hints, const RepairOptions& options,
                 RepairReport* report)
    : views_(std::move(views)),
      backup_(std::move(backup)),
      is_backup_of_this_store_(is_backup_of_this_store),
      damaged_(std::move(damaged)),
      name_hints_(std::move(name_hints)),
      options_(options),
      report_(report) {}

bool Salvage::IsDamaged(Family family) const {
  return std::ranges::any_of(damaged_, [&](const auto& table) { return IsOf(table, family); });
}

// Returns which damaged tables of a family may hold records of a step. Empty = none.
std::string Salvage::LostIn(Family family, StepKey step) const {
  for (const DamagedTable& table : damaged_) {
    if (IsOf(table, family) && MayHoldKeysOf(table, step)) return table.what;
  }
  return "";
}

Status Salvage::Find() {
  VARVE_RETURN_IF_ERROR(FindRuns());
  // What one look finds helps the next around blocks that cannot be read.
  const bool look_everywhere = IsDamaged(Family::kSteps);
  for (size_t before = SIZE_MAX; before != steps_.size();) {
    before = steps_.size();
    for (const SalvageSource& view : views_) {
      const Database& db = *view.store->database();
      VARVE_RETURN_IF_ERROR(look_everywhere ? AddAllSteps(db, &steps_)
                                            : AddSteps(db, Family::kSteps, &steps_));
    }
    if (!look_everywhere) break;
  }
  AddStepsOfLostTables();
  VARVE_RETURN_IF_ERROR(FindBackupSteps());
  NameRuns();
  VARVE_RETURN_IF_ERROR(LoadTags());
  VARVE_RETURN_IF_ERROR(CheckBackup());
  for (const StepKey& step : steps_) {
    for (SalvageSource& view : views_) {
      const auto record = view.store->FindStep(step);
      if (!record.ok() || !record->has_value()) continue;
      total_bytes_ += (*record)->logical_bytes;
      break;
    }
  }
  return Status::Ok();
}

// The manifest has the first and the last key of each table. So it names steps whose records, and
// all else of them, may be gone.
void Salvage::AddStepsOfLostTables() {
  for (const DamagedTable& table : damaged_) {
    if (!IsOf(table, Family::kSteps)) continue;
    for (const std::string& key : {table.first_key, table.last_key}) {
      if (const auto step = keys::ParseStep(key)) steps_.insert(*step);
    }
  }
}

Status Salvage::FindRuns() {
  const Database& db = *views_[0].store->database();
  VARVE_RETURN_IF_ERROR(VisitRuns(db, [&](std::string name, const RunRecord& record) {
    runs_.emplace(record.id, Run{std::move(name), record.forked_from});
  }));
  VARVE_ASSIGN_OR_RETURN(const auto next, db.Get(Family::kMeta, keys::kNextRun));
  if (!next.has_value()) return Status::Ok();
  next_run_ = static_cast<RunId>(std::min<uint64_t>(DecodeNumber(*next).value_or(1), UINT32_MAX));
  return Status::Ok();
}

// Adds the steps of the backup of which the damaged store may have lost the record.
Status Salvage::FindBackupSteps() {
  if (backup_.store == nullptr || !is_backup_of_this_store_) return Status::Ok();
  std::set<StepKey> there;
  VARVE_RETURN_IF_ERROR(AddSteps(*backup_.store->database(), Family::kSteps, &there));
  for (const StepKey& step : there) {
    const bool may_have_run = runs_.contains(step.run) || IsDamaged(Family::kMeta);
    if (may_have_run && !LostIn(Family::kSteps, step).empty()) steps_.insert(step);
  }
  if (takes_newer_steps_) VARVE_RETURN_IF_ERROR(FindNewerSteps(there));
  if (!IsDamaged(Family::kMeta) && newer_steps_.empty()) return Status::Ok();
  return VisitRuns(*backup_.store->database(), [&](std::string name, const RunRecord& record) {
    if (runs_.contains(record.id)) return;
    const bool is_taken =
        std::ranges::any_of(runs_, [&](const auto& run) { return run.second.name == name; });
    const auto first = steps_.lower_bound({record.id, 0});
    const bool has_steps = first != steps_.end() && first->run == record.id;
    if (!is_taken && has_steps) runs_.emplace(record.id, Run{std::move(name), record.forked_from});
  });
}

// Save ids only grow. So a step with a higher one than all that the views know was saved later. If
// the backup is later, that is so where a view has a save of the step, too.
Status Salvage::FindNewerSteps(const std::set<StepKey>& there) {
  uint64_t newest = 0;
  for (const SalvageSource& view : views_) {
    for (const StepKey& step : steps_) {
      const auto record = view.store->FindStep(step);
      if (record.ok() && record->has_value()) newest = std::max(newest, (*record)->save_id);
    }
  }
  VARVE_RETURN_IF_ERROR(views_[0].store->database()->Scan(
      Family::kBirths, "", [&](std::string_view key, std::string_view) -> Status {
        const auto save = keys::ParseSave(key);
        if (save.has_value()) newest = std::max(newest, save->save_id);
        return Status::Ok();
      }));
  for (const StepKey& step : there) {
    const auto record = backup_.store->FindStep(step);
    const bool is_newer = record.ok() && record->has_value() && (*record)->save_id > newest;
    if (is_newer && (backup_is_later_ || !steps_.contains(step))) newer_steps_.insert(step);
  }
  steps_.insert(newer_steps_.begin(), newer_steps_.end());
  return Status::Ok();
}

// Gives a name to every run that has steps but no record.
void Salvage::NameRuns() {
  std::set<std::string> names;
  for (const auto& [id, run] : runs_) names.insert(run.name);
  for (const StepKey& step : steps_) {
    if (runs_.contains(step.run)) continue;
    const auto hint = name_hints_.find(step.run);
    std::string name = hint == name_hints_.end() ? "" : hint->second;
    const bool is_known = !name.empty() && !names.contains(name);
    for (int k = 0; !is_known && (k == 0 || names.contains(name)); ++k) {
      name = "run-" + std::to_string(step.run) + (k > 0 ? "-" + std::to_string(k) : "");
    }
    if (!is_known) {
      report_->warnings.push_back("the name of run number " + std::to_string(step.run) +
                                  " is lost; it is called " + name + " now");
    }
    names.insert(name);
    runs_.emplace(step.run, Run{name, {}});
  }
  for (const auto& [id, run] : runs_) next_run_ = std::max(next_run_, id + 1);
}

Status Salvage::LoadTags() {
  for (const auto& [id, run] : runs_) {
    VARVE_ASSIGN_OR_RETURN(auto first, views_[0].store->ListTags(id));
    decltype(first) second;
    const bool may_lack_tags = IsDamaged(Family::kMeta) || !newer_steps_.empty();
    if (backup_.store != nullptr && is_backup_of_this_store_ && may_lack_tags) {
      VARVE_ASSIGN_OR_RETURN(second, backup_.store->ListTags(id));
      if (HasLaterSaves()) std::swap(first, second);
    }
    std::map<std::string, uint64_t> tags(first.begin(), first.end());
    tags.insert(second.begin(), second.end());  // those that are not among the first
    for (const auto& [tag, step] : tags) tags_[{id, step}].insert(tag);
  }
  return Status::Ok();
}

// `more`: bytes of the step in work that are done.
void Salvage::ShowProgress(uint64_t more) const {
  if (!options_.progress) return;
  options_.progress(std::min(done_bytes_ + more, total_bytes_), total_bytes_);
}

Status Salvage::VerifyAll() {
  return TakeAll([this](SalvageSource& source, StepKey step, StepFaults* faults) {
    return source.verifier->Verify(
        step, NameOf(step.run),
        [this](uint64_t bytes) {
          done_bytes_ += bytes;
          ShowProgress(0);
        },
        faults);
  });
}

Status Salvage::SaveAll(StoreImpl* to) {
  to_ = to;
  VARVE_RETURN_IF_ERROR(PutRuns());
  VARVE_RETURN_IF_ERROR(TakeAll([this](SalvageSource& source, StepKey step, StepFaults* faults) {
    return Save(source, step, faults);
  }));
  return PutRest();
}

Status Salvage::TakeAll(const Take& take) {
  for (const StepKey& step : steps_) {
    VARVE_RETURN_IF_ERROR(StopFlag().Check());
    const Status taken = TakeStep(step, take);
    VARVE_RETURN_IF_ERROR(CheckBackup());
    VARVE_RETURN_IF_ERROR(taken);
  }
  AddWarnings();
  return Status::Ok();
}

Status Salvage::TakeStep(StepKey step, const Take& take) {
  const CheckpointId id{NameOf(step.run), step.step};
  StepFaults first;
  bool has_record = false;
  const bool is_newer = newer_steps_.contains(step);
  const auto try_source = [&](SalvageSource& source) -> Result<bool> {
    StepFaults faults;
    VARVE_RETURN_IF_ERROR(take(source, step, &faults));
    if (!faults.empty()) {
      if (first.empty()) first = std::move(faults);
      return false;
    }
    taken_[step] = &source;
    report_->kept.push_back({id, &source == &backup_, DoubtsOf(source, step)});
    return true;
  };
  if (is_newer) {
    const Result<bool> is_taken = try_source(backup_);
    const StatusCode code = is_taken.status().code();
    if (code == StatusCode::kAborted || IsNoSpace(is_taken.status()) ||
        IsShortage(is_taken.status())) {
      return is_taken.status();
    }
    if (is_taken.ok() && *is_taken) return Status::Ok();
    if (!is_taken.ok()) first.Add("", is_taken.status().ToString());
  }
  for (SalvageSource& view : views_) {
    const auto record = view.store->FindStep(step);
    if (record.ok() && !record->has_value()) continue;
    has_record = true;
    VARVE_ASSIGN_OR_RETURN(const bool from_backup, IsWholeInBackup(view, step));
    if (from_backup) {
      VARVE_ASSIGN_OR_RETURN(const bool is_taken, try_source(backup_));
      if (is_taken) return Status::Ok();
      first = {};  // the view may have it
    }
    VARVE_ASSIGN_OR_RETURN(const bool is_taken, try_source(view));
    if (is_taken) return Status::Ok();
  }
  has_record = has_record || is_newer;
  VARVE_ASSIGN_OR_RETURN(const bool may_take, MayTakeFromBackup(step));
  if (may_take && !is_newer) {
    VARVE_ASSIGN_OR_RETURN(const bool is_taken, try_source(backup_));
    if (is_taken) return Status::Ok();
  }
  if (!has_record) {
    first.reason = "its record is lost, or it was dropped: " + LostIn(Family::kSteps, step);
  }
  report_->lost.push_back({id, std::move(first.reason), std::move(first.tensors)});
  return TakePart(step, may_take || is_newer, &report_->lost.back());
}

// Takes the source from which the most tensors of a lost step can be read.
Status Salvage::TakePart(StepKey step, bool may_take_from_backup, RepairReport::LostStep* lost) {
  SalvageSource* best = nullptr;
  StepPart part;
  const auto look = [&](SalvageSource& source) -> Status {
    VARVE_ASSIGN_OR_RETURN(StepPart found, source.verifier->FindPart(step, lost->id.run));
    if (found.kept_tensors.size() <= part.kept_tensors.size()) return Status::Ok();
    best = &source;
    part = std::move(found);
    return Status::Ok();
  };
  for (SalvageSource& view : views_) VARVE_RETURN_IF_ERROR(look(view));
  if (may_take_from_backup) VARVE_RETURN_IF_ERROR(look(backup_));
  lost->has_readable_tensors = best != nullptr;
  if (best == nullptr || !options_.keep_partial) return Status::Ok();
  const std::string& run = DamagedRunOf(step.run);
  if (to_ != nullptr) VARVE_RETURN_IF_ERROR(SavePart(*best, step, part, run));
  taken_parts_[step] = {best, run};
  report_->partial.push_back({.id = lost->id,
                              .run = run,
                              .kept_tensors = std::move(part.kept_tensors),
                              .lost_tensors = std::move(part.lost_tensors),
                              .other_losses = std::move(part.other_losses),
                              .is_from_backup = best == &backup_,
                              .doubts = DoubtsOf(*best, step)});
  return Status::Ok();
}

// Returns the name of the run for parts of steps of another run.
const std::string& Salvage::DamagedRunOf(RunId run) {
  std::string& name = damaged_runs_[run];
  const auto is_taken = [this](const std::string& tried) {
    return std::ranges::any_of(runs_,
                               [&](const auto& known) { return known.second.name == tried; }) ||
           std::ranges::any_of(damaged_runs_,
                               [&](const auto& known) { return known.second == tried; });
  };
  for (int k = 1; name.empty(); ++k) {
    const std::string end = "~damaged" + (k > 1 ? std::to_string(k) : "");
    const std::string tried = FirstBytes(NameOf(run), kMaxNameBytes - end.size()) + end;
    if (!is_taken(tried)) name = tried;
  }
  return name;
}

// A step of the backup is the step that was here if it has the same root digest. If the record of
// the step that was here is lost, nobody knows.
Result<bool> Salvage::MayTakeFromBackup(StepKey step) {
  if (backup_.store == nullptr) return false;
  const auto there = backup_.store->FindStep(step);
  if (IsShortage(there.status())) return there.status();
  if (!there.ok() || !there->has_value()) return false;
  for (const SalvageSource& view : views_) {
    const auto here = view.store->FindStep(step);
    if (IsShortage(here.status())) return here.status();
    if (here.ok() && here->has_value() && (*here)->root == (*there)->root) return true;
  }
  return is_backup_of_this_store_ && !LostIn(Family::kSteps, step).empty();
}

// True when a step of a view may lack something of its state, and the backup has the same save.
Result<bool> Salvage::IsWholeInBackup(const SalvageSource& view, StepKey step) const {
  const bool is_in_doubt = std::ranges::any_of(view.left_out, [&](const DamagedTable& table) {
    return IsOf(table, Family::kState) && MayHoldKeysOf(table, step);
  });
  if (!is_in_doubt || backup_.store == nullptr || !is_backup_of_this_store_) return false;
  const auto here = view.store->FindStep(step), there = backup_.store->FindStep(step);
  if (IsShortage(here.status())) return here.status();
  if (IsShortage(there.status())) return there.status();
  return here.ok() && there.ok() && here->has_value() && there->has_value() &&
         (*here)->save_id == (*there)->save_id && (*here)->root == (*there)->root;
}

Status Salvage::Save(SalvageSource& source, StepKey step, StepFaults* faults) {
  const std::string& run = NameOf(step.run);
  const CheckpointId id{run, step.step};
  Status status = source.verifier->CheckRecords(step, run);
  if (status.ok()) {
    CopyOptions options;
    options.progress = [this](uint64_t done, uint64_t) { ShowProgress(done); };
    const auto copied =
        CopyCheckpoints({&id, 1}, source.store->digest_seed(), to_, options,
                        [&](const CheckpointId&) { return source.store->OpenShardsOf(step, run); });
    status = copied.status();
    if (copied.ok()) done_bytes_ += copied->front().logical_bytes;
  }
  if (status.ok()) {
    VARVE_ASSIGN_OR_RETURN(const auto there, to_->FindStep(step));
    VARVE_ASSIGN_OR_RETURN(const auto here, source.store->FindStep(step));
    if (there.has_value() && here.has_value() && there->root == here->root) return Status::Ok();
    faults->Add("", "its chunks do not have the digests of its tensors");
    VARVE_RETURN_IF_ERROR(to_->Drop({&id, 1}, {}).status());
  }
  if (status.code() == StatusCode::kAborted || IsNoSpace(status) || IsShortage(status)) {
    return status;
  }
  VARVE_RETURN_IF_ERROR(source.verifier->Verify(
      step, run, [](uint64_t) {}, faults));
  return faults->empty() ? status : Status::Ok();  // then it is the new store that failed
}

Status Salvage::SavePart(SalvageSource& source, StepKey step, const StepPart& part,
                         const std::string& run) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, source.store->OpenShardsOf(step, NameOf(step.run)));
  CopyOptions options{.run = run};
  options.progress = [this](uint64_t done, uint64_t) { ShowProgress(done); };
  VARVE_ASSIGN_OR_RETURN(const SaveReport saved, CopyPart(*reader, part, to_, options));
  done_bytes_ += saved.logical_bytes;
  return Status::Ok();
}

Status Salvage::PutRuns() {
  const auto lock = to_->LockCommits();
  CommitBatch batch;
  for (const auto& [id, run] : runs_) {
    const RunRecord record{.id = id, .forked_from = run.forked_from};
    batch.Put(Family::kMeta, keys::Run(run.name), EncodeRunRecord(record));
  }
  batch.Put(Family::kMeta, std::string(keys::kNextRun), EncodeNumber(next_run_));
  return to_->Commit(batch);
}

// The record of the damaged store where it is known and not the older one, or else that of the
// source.
Result<StepRecord> Salvage::OwnRecord(SalvageSource& source, StepKey step) const {
  VARVE_ASSIGN_OR_RETURN(const auto taken, source.store->FindStep(step));
  if (!taken.has_value()) return Status::Corruption("the step has no record");
  if (HasLaterSaves()) {
    const auto there = backup_.store->FindStep(step);
    if (there.ok() && there->has_value() && (*there)->root == taken->root) return **there;
  }
  for (const SalvageSource& view : views_) {
    const auto here = view.store->FindStep(step);
    if (here.ok() && here->has_value() && (*here)->root == taken->root) return **here;
  }
  return *taken;
}

// Gives the step `there` of the new store the parent and the metrics of a step that was taken.
Status Salvage::PutOwnRecord(SalvageSource& source, StepKey step, StepKey there,
                             CommitBatch* batch) const {
  VARVE_ASSIGN_OR_RETURN(auto record, to_->FindStep(there));
  VARVE_ASSIGN_OR_RETURN(const StepRecord own, OwnRecord(source, step));
  if (!record.has_value()) return Status::Corruption("a step that was saved is gone");
  record->parent = own.parent;
  record->metrics = own.metrics;
  batch->Put(Family::kSteps, keys::Step(there), EncodeStepRecord(*record));
  return Status::Ok();
}

// What a copy does not take over: parents, tags, and metrics that are newer than the backup.
Status Salvage::PutRest() {
  const auto lock = to_->LockCommits();
  CommitBatch batch;
  std::set<RunId> used;
  for (const auto& [step, source] : taken_) {
    used.insert(step.run);
    VARVE_RETURN_IF_ERROR(PutOwnRecord(*source, step, step, &batch));
    const auto tags = tags_.find(step);
    if (tags == tags_.end()) continue;
    for (const std::string& tag : tags->second) {
      batch.Put(Family::kMeta, keys::Tag(step.run, tag), EncodeNumber(step.step));
    }
  }
  for (const auto& [step, part] : taken_parts_) {
    VARVE_ASSIGN_OR_RETURN(const RunRecord run, to_->FindRun(part.run));
    VARVE_RETURN_IF_ERROR(PutOwnRecord(*part.source, step, {run.id, step.step}, &batch));
  }
  for (const auto& [id, run] : runs_) {
    const bool goes = run.forked_from.has_value() && !used.contains(id);  // as when it is dropped
    if (goes) batch.Delete(Family::kMeta, keys::Run(run.name));
  }
  return to_->Commit(batch);
}

std::vector<std::string> Salvage::DoubtsOf(const SalvageSource& source, StepKey step) const {
  std::vector<std::string> doubts;
  const bool is_backup = &source == &backup_;
  const SalvageSource* known = is_backup ? nullptr : &source;  // whose record the step has
  if (is_backup) {
    const auto there = backup_.store->FindStep(step);
    for (const SalvageSource& view : views_) {
      const auto here = view.store->FindStep(step);
      if (here.ok() && here->has_value() && there.ok() && there->has_value() &&
          (*here)->save_id == (*there)->save_id) {
        known = &view;
        break;
      }
    }
    if (known == nullptr) {
      doubts.emplace_back("it may have been replaced, changed or dropped since the backup");
      return doubts;
    }
  }
  for (const DamagedTable& table : known->left_out) {
    if (!MayHoldKeysOf(table, step)) continue;
    if (IsOf(table, Family::kSteps)) {
      doubts.push_back("its metrics, or all of it, may be of an earlier time: " + table.what);
    } else if (!is_backup && IsOf(table, Family::kState)) {
      doubts.push_back(
          "its trainer progress and topology may be missing, or those and its items of an earlier "
          "save: " +
          table.what);
    }
  }
  if (!is_backup && newer_steps_.contains(step)) {
    doubts.emplace_back("it is an earlier save. The backup has a later one, which cannot be read");
  }
  return doubts;
}

void Salvage::AddWarnings() {
  for (const DamagedTable& table : views_.back().left_out) {
    if (IsOf(table, Family::kSteps)) {
      report_->warnings.push_back(
          "steps that were dropped may be back, and steps whose records were in it may be "
          "missing: " +
          table.what +
          ". Compare the steps that are kept with those that the trainer reported as saved");
    } else if (IsOf(table, Family::kMeta)) {
      report_->warnings.push_back(
          "names of runs, origins of forks and tags may be lost or of an earlier time: " +
          table.what);
    }
  }
  std::set<RunId> with_steps, used;
  for (const StepKey& step : steps_) with_steps.insert(step.run);
  for (const auto& [step, source] : taken_) used.insert(step.run);
  for (const RunId run : with_steps) {
    if (!used.contains(run)) {
      report_->warnings.push_back("run " + NameOf(run) + " has no step left");
    }
  }
  for (const auto& [step, tags] : tags_) {
    if (taken_.contains(step) || !steps_.contains(step)) continue;
    for (const std::string& tag : tags) {
      report_->warnings.push_back("tag " + tag + " is lost with " +
                                  StepName(NameOf(step.run), step.step));
    }
  }
}

}  // namespace varve::internal
