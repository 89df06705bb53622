// SPDX-License-Identifier: Apache-2.0
#include "store/group/group_store.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "base/add_new.h"
#include "base/util.h"
#include "store/db/guarded_store.h"
#include "store/group/posix_record_log.h"
#include "store/ops/copy.h"
#include "store/ops/history.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

Status NoRun(std::string_view run) { return Status::NotFound("no run " + std::string(run)); }
Status NoStep(const CheckpointId& id) {
  return Status::NotFound("no " + StepName(id.run, id.step));
}
Status NoTag(std::string_view run, std::string_view tag) {
  return Status::NotFound("no tag " + std::string(tag) + " in run " + std::string(run));
}

// Compares the bits, so that a NaN equals itself.
bool HasMetrics(const GroupStep& step, const std::map<std::string, double>& metrics) {
  return std::all_of(metrics.begin(), metrics.end(), [&](const auto& metric) {
    const auto it = step.metrics.find(metric.first);
    return it != step.metrics.end() &&
           std::bit_cast<uint64_t>(it->second) == std::bit_cast<uint64_t>(metric.second);
  });
}

// Returns the current step. kNotFound names it.
Result<NamedAttempt> AttemptOf(const GroupState& state, const CheckpointId& id) {
  const GroupStep* step = state.FindStep(id);
  if (step == nullptr) return state.runs.contains(id.run) ? NoStep(id) : NoRun(id.run);
  return NamedAttempt{id, step->attempt};
}

std::set<MemberId> MembersOf(const GroupState& state, const std::vector<NamedAttempt>& steps) {
  std::set<MemberId> members;
  for (const NamedAttempt& step : steps) {
    const std::vector<MemberId> crew = state.FindAttempt(step.attempt)->Members();
    members.insert(crew.begin(), crew.end());
  }
  return members;
}

constexpr std::optional<RecordBody> kDone = std::nullopt;

// All but its tags.
CheckpointInfo MakeUntagged(const GroupState& state, const CheckpointId& id,
                            const GroupStep& step) {
  const GroupAttempt& attempt = *state.FindAttempt(step.attempt);
  CheckpointInfo info;
  info.id = id;
  info.created =
      std::chrono::system_clock::time_point(std::chrono::microseconds(attempt.created_us));
  info.parent = step.parent;
  const GroupTotals totals = attempt.Totals();
  info.num_tensors = totals.num_tensors;
  info.logical_bytes = totals.logical_bytes;
  info.new_bytes = totals.new_bytes;
  info.stored_bytes = totals.stored_bytes;
  info.metrics = step.metrics;
  return info;
}

void Add(const ReclaimReport& from, ReclaimReport* to) {
  to->freed_bytes += from.freed_bytes;
  to->rewritten_bytes += from.rewritten_bytes;
  to->pending_bytes += from.pending_bytes;
}

}  // namespace

CheckpointInfo MakeGroupInfo(const GroupState& state, const CheckpointId& id) {
  CheckpointInfo info = MakeUntagged(state, id, *state.FindStep(id));
  for (const auto& [tag, tagged] : state.runs.at(id.run).tags) {
    if (tagged == id.step) info.tags.push_back(tag);
  }
  return info;
}

GroupStore::GroupStore(fs::path root, const GroupFile& file, const StoreOptions& options,
                       bool for_writing)
    : options_(options),
      for_writing_(for_writing),
      log_(std::make_unique<GroupLog>(MakePosixRecordLog(LogFolder(root)), file.digest_seed)),
      pins_(std::make_unique<PinKeeper>(log_.get())),
      place_{std::move(root), file, log_.get()} {}

Result<std::unique_ptr<GroupStore>> GroupStore::Load(const fs::path& root,
                                                     const StoreOptions& options,
                                                     bool for_writing) {
  VARVE_ASSIGN_OR_RETURN(const GroupFile file, ReadGroupFile(root));
  if (for_writing) VARVE_RETURN_IF_ERROR(CheckFoldersAreNoLinks(root));
  std::unique_ptr<GroupStore> store(new GuardedStore<GroupStore>(root, file, options, for_writing));
  const Status status = store->log()->Refresh();
  if (!status.ok()) return status.WithContext(root.string());
  return store;
}

Result<std::unique_ptr<GroupStore>> GroupStore::OpenPath(const fs::path& root,
                                                         const StoreOptions& options,
                                                         bool for_writing) {
  return Load(root, options, for_writing);
}

Result<std::unique_ptr<GroupStore>> GroupStore::Join(const fs::path& root,
                                                     const JoinOptions& options) {
  VARVE_ASSIGN_OR_RETURN(auto store, Load(root, options.store, /*for_writing=*/true));
  store->patience_.timeout = options.timeout;
  Result<OwnMember> own = AdoptMember(store->place_, options);
  if (!own.ok()) return own.status().WithContext("joining the group in " + root.string());
  store->own_ = *std::move(own);
  store->NoteWarnings(store->own_.warnings);
  // An attempt that was given up before this rank joined is not a save of this rank.
  store->log()->With([&](const GroupState& state) {
    for (const auto& [number, outcome] : state.outcomes) store->taken_.Take(number);
  });
  if (!store->own_.is_swept) store->sweeper_.Ask();
  return store;
}

Status GroupStore::RequireWriter() const {
  if (for_writing_) return Status::Ok();
  return Status::FailedPrecondition("the group in " + place_.root.string() +
                                    " is open for reading only");
}

Status GroupStore::Propose(const GroupChange& change) const {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  return ProposeAs(log(), author(), change);
}

Result<std::shared_ptr<const StoreImpl>> GroupStore::MemberForReading(MemberId member) const {
  if (own_.store != nullptr && member == author().member) {
    return std::shared_ptr<const StoreImpl>(std::shared_ptr<void>(), own_.store.get());
  }
  const std::lock_guard lock(readers_mutex_);
  auto& reader = readers_[member];
  if (reader != nullptr) {
    VARVE_RETURN_IF_ERROR(reader->CatchUp());  // the log has moved on since it was opened
    return reader;
  }
  auto opened = OpenMember(place_, member, options_, /*for_writing=*/false);
  if (opened.status().code() == StatusCode::kNotFound) {
    // The log may have got ahead of what was looked at, so this looks again after reading it.
    VARVE_RETURN_IF_ERROR(log()->Refresh());
    opened = OpenMember(place_, member, options_, /*for_writing=*/false);
    if (opened.status().code() == StatusCode::kNotFound) {
      VARVE_RETURN_IF_ERROR(RequireNotLost(place_, member));
    }
  }
  VARVE_ASSIGN_OR_RETURN(reader, std::move(opened));
  return reader;
}

Result<std::optional<AttemptId>> GroupStore::FindNewestOwn() const {
  VARVE_ASSIGN_OR_RETURN(const std::set<AttemptId> held, HeldAttempts(*own_.store));
  return log()->With([&](const GroupState& state) {
    const auto is_committed = [&](AttemptId number) {
      const GroupAttempt* found = state.FindAttempt(number);
      return found != nullptr && found->committed;
    };
    const auto newest = std::find_if(held.rbegin(), held.rend(), is_committed);
    return newest == held.rend() ? std::nullopt : std::optional(*newest);
  });
}

Result<std::vector<TensorInfo>> GroupStore::ListOwnShards() const {
  VARVE_ASSIGN_OR_RETURN(const std::optional<AttemptId> newest, FindNewestOwn());
  if (!newest.has_value()) return std::vector<TensorInfo>();
  VARVE_ASSIGN_OR_RETURN(const auto part, own_.store->OpenShards(kMemberRun, *newest));
  return part->ListShards();
}

Result<std::vector<RunInfo>> GroupStore::ListRuns() const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  return log()->With([](const GroupState& state) {
    std::vector<RunInfo> runs;
    for (const auto& [name, run] : state.runs) {
      runs.push_back({name, run.forked_from, run.steps.size()});
    }
    return runs;
  });
}

Result<std::vector<CheckpointInfo>> GroupStore::ListCheckpoints(std::string_view run) const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  return log()->With([&](const GroupState& state) -> Result<std::vector<CheckpointInfo>> {
    const auto found = state.runs.find(std::string(run));
    if (found == state.runs.end()) return NoRun(run);
    std::map<uint64_t, std::vector<std::string>> tags;
    for (const auto& [tag, step] : found->second.tags) tags[step].push_back(tag);
    std::vector<CheckpointInfo> infos;
    for (const auto& [step, entry] : found->second.steps) {
      infos.push_back(MakeUntagged(state, {found->first, step}, entry));
      if (const auto it = tags.find(step); it != tags.end()) infos.back().tags = it->second;
    }
    return infos;
  });
}

Result<KnownCheckpoints> GroupStore::ListKnownCheckpoints() const {
  KnownCheckpoints known;
  VARVE_ASSIGN_OR_RETURN(const std::vector<RunInfo> runs, ListRuns());
  for (const RunInfo& run : runs) {
    VARVE_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> steps, ListCheckpoints(run.name));
    std::ranges::move(steps, std::back_inserter(known.checkpoints));
  }
  return known;
}

Result<std::optional<uint64_t>> GroupStore::LatestStep(std::string_view run) const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  return log()->With([&](const GroupState& state) -> Result<std::optional<uint64_t>> {
    const auto found = state.runs.find(std::string(run));
    if (found == state.runs.end()) return NoRun(run);
    std::optional<uint64_t> latest;
    if (!found->second.steps.empty()) latest = found->second.steps.rbegin()->first;
    return latest;
  });
}

Result<uint64_t> GroupStore::FindTag(std::string_view run, std::string_view tag) const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  return log()->With([&](const GroupState& state) -> Result<uint64_t> {
    const auto found = state.runs.find(std::string(run));
    if (found == state.runs.end()) return NoRun(run);
    const auto step = found->second.tags.find(std::string(tag));
    if (step == found->second.tags.end()) return NoTag(run, tag);
    return step->second;
  });
}

Status GroupStore::SetMetrics(const CheckpointId& id,
                              const std::map<std::string, double>& metrics) {
  for (const auto& [name, value] : metrics)
    VARVE_RETURN_IF_ERROR(ValidateName("metric name", name));
  return Propose([&](const GroupState& state) -> Result<std::optional<RecordBody>> {
    VARVE_ASSIGN_OR_RETURN(const NamedAttempt step, AttemptOf(state, id));
    if (HasMetrics(*state.FindStep(id), metrics)) return kDone;
    return std::optional<RecordBody>(MetricsRecord{step, metrics});
  });
}

Status GroupStore::SetTag(const CheckpointId& id, std::string_view tag) {
  VARVE_RETURN_IF_ERROR(ValidateTag(tag));
  return Propose([&](const GroupState& state) -> Result<std::optional<RecordBody>> {
    VARVE_ASSIGN_OR_RETURN(const NamedAttempt step, AttemptOf(state, id));
    const auto& tags = state.runs.at(id.run).tags;
    const auto it = tags.find(std::string(tag));
    if (it != tags.end() && it->second == id.step) return kDone;
    return std::optional<RecordBody>(TagRecord{step, std::string(tag)});
  });
}

Status GroupStore::RemoveTag(std::string_view run, std::string_view tag) {
  bool seen = false;
  return Propose([&](const GroupState& state) -> Result<std::optional<RecordBody>> {
    const auto found = state.runs.find(std::string(run));
    const bool there = found != state.runs.end() && found->second.tags.contains(std::string(tag));
    if (!there && seen) return kDone;
    if (!there) return found == state.runs.end() ? NoRun(run) : NoTag(run, tag);
    seen = true;
    return std::optional<RecordBody>(UntagRecord{std::string(run), std::string(tag)});
  });
}

Result<uint64_t> GroupStore::Fork(std::string_view run, std::string_view new_run,
                                  std::optional<uint64_t> at) {
  VARVE_RETURN_IF_ERROR(ValidateRun(new_run));
  CheckpointId from{std::string(run), 0};
  bool proposed = false;
  VARVE_RETURN_IF_ERROR(Propose([&](const GroupState& state) -> Result<std::optional<RecordBody>> {
    const auto there = state.runs.find(std::string(new_run));
    if (there != state.runs.end() && proposed && there->second.forked_from == from) return kDone;
    if (there != state.runs.end()) {
      return Status::AlreadyExists("there is a run " + std::string(new_run));
    }
    const auto found = state.runs.find(from.run);
    if (found == state.runs.end()) return NoRun(run);
    if (found->second.steps.empty()) return Status::NotFound("no step in run " + from.run);
    from.step = at.value_or(found->second.steps.rbegin()->first);
    VARVE_ASSIGN_OR_RETURN(const NamedAttempt step, AttemptOf(state, from));
    proposed = true;
    return std::optional<RecordBody>(ForkRecord{step, std::string(new_run)});
  }));
  return from.step;
}

Result<RewindReport> GroupStore::Rewind(std::string_view run, uint64_t to) {
  RewindReport report;
  const CheckpointId id{std::string(run), to};
  VARVE_RETURN_IF_ERROR(Propose([&](const GroupState& state) -> Result<std::optional<RecordBody>> {
    VARVE_ASSIGN_OR_RETURN(const NamedAttempt step, AttemptOf(state, id));
    const auto& steps = state.runs.at(id.run).steps;
    const auto later = steps.upper_bound(to);
    if (later == steps.end()) return kDone;
    report = {state.FreeForkName(run), {}};
    for (auto it = later; it != steps.end(); ++it) report.moved.push_back(it->first);
    return std::optional<RecordBody>(RewindRecord{step, report.fork});
  }));
  return report;
}

Result<std::vector<TensorChange>> GroupStore::Log(std::string_view run,
                                                  std::string_view tensor) const {
  // A pin costs two records, which is too much for each of many steps. A step that is dropped
  // meanwhile is left out, or is shown as it was.
  return LogTensor(*this, run, tensor, [&](uint64_t step) {
    return OpenShards({std::string(run), step}, false);
  });
}

Result<CheckpointDiff> GroupStore::Diff(const CheckpointId& before, const CheckpointId& after,
                                        const DiffOptions& options) const {
  VARVE_ASSIGN_OR_RETURN(const auto a, OpenShards(before, for_writing_));
  VARVE_ASSIGN_OR_RETURN(const auto b, OpenShards(after, for_writing_));
  return DiffCheckpoints(*a, *b, options);
}

Result<std::vector<SaveReport>> GroupStore::CopyTo(Store* destination,
                                                   std::span<const CheckpointId> ids,
                                                   const CopyOptions& options) const {
  return CopyCheckpoints(ids, place_.file.digest_seed, destination, options,
                         [&](const CheckpointId& id) { return OpenShards(id, for_writing_); });
}

// Returns all steps, each once. kNotFound names every missing one.
Result<std::vector<NamedAttempt>> GroupStore::ResolveForDrop(
    const GroupState& state, std::span<const CheckpointId> ids) const {
  std::set<AttemptId> bases;  // of saves in progress
  for (const auto& [number, attempt] : state.attempts) {
    if (!attempt.committed) bases.insert(attempt.base);
  }
  std::vector<NamedAttempt> steps;
  std::set<std::pair<std::string_view, uint64_t>> seen;
  std::string missing;
  std::string pinned;
  for (const CheckpointId& id : ids) {
    const Result<NamedAttempt> step = AttemptOf(state, id);
    if (!step.ok()) {
      AddStepName(id.run, id.step, &missing);
      continue;
    }
    if (!seen.emplace(id.run, id.step).second) continue;
    steps.push_back(*step);
    if (bases.contains(step->attempt)) AddStepName(id.run, id.step, &pinned);
  }
  if (!missing.empty()) return Status::NotFound("no " + missing + "; nothing was dropped");
  if (!pinned.empty()) {
    return Status::FailedPrecondition(pinned + ": base of a save in progress; nothing was dropped");
  }
  return steps;
}

// Returns the attempts that would be closed, by the members that hold them. Most attempts have the
// same members, so this takes far less memory than a list for each member.
Result<GroupStore::ClosedByCrew> GroupStore::FindClosedBy(std::span<const CheckpointId> ids) const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  ClosedByCrew closed;
  VARVE_RETURN_IF_ERROR(log()->With([&](const GroupState& state) -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto steps, ResolveForDrop(state, ids));
    std::map<AttemptId, uint64_t> names;
    for (const NamedAttempt& step : steps) ++names[step.attempt];
    for (const auto& [number, dropped] : names) {
      const GroupAttempt& attempt = *state.FindAttempt(number);
      if (attempt.names > dropped) continue;
      closed[attempt.Members()].push_back({std::string(kMemberRun), number});
    }
    return Status::Ok();
  }));
  return closed;
}

Status GroupStore::ForEachMember(
    const ClosedByCrew& closed,
    const std::function<Status(const StoreImpl&, std::span<const CheckpointId>)>& visit) const {
  std::map<MemberId, std::vector<const std::vector<CheckpointId>*>> by_member;
  for (const auto& [crew, attempts] : closed) {
    for (const MemberId member : crew) by_member[member].push_back(&attempts);
  }
  for (const auto& [member, parts] : by_member) {
    std::vector<CheckpointId> attempts;
    for (const auto* part : parts) attempts.insert(attempts.end(), part->begin(), part->end());
    VARVE_ASSIGN_OR_RETURN(const auto store, MemberForReading(member));
    VARVE_RETURN_IF_ERROR(visit(*store, attempts));
  }
  return Status::Ok();
}

Result<uint64_t> GroupStore::BytesFreedByDrop(std::span<const CheckpointId> ids) const {
  VARVE_ASSIGN_OR_RETURN(const auto closed, FindClosedBy(ids));
  uint64_t freed = 0;
  VARVE_RETURN_IF_ERROR(ForEachMember(
      closed, [&](const StoreImpl& member, std::span<const CheckpointId> attempts) -> Status {
        VARVE_ASSIGN_OR_RETURN(const uint64_t bytes, member.BytesFreedByDrop(attempts));
        freed += bytes;
        return Status::Ok();
      }));
  return freed;
}

Result<DropForecast> GroupStore::ForecastDrop(std::span<const CheckpointId> ids) const {
  VARVE_ASSIGN_OR_RETURN(const auto closed, FindClosedBy(ids));
  DropForecast all;
  VARVE_RETURN_IF_ERROR(ForEachMember(
      closed, [&](const StoreImpl& member, std::span<const CheckpointId> attempts) -> Status {
        VARVE_ASSIGN_OR_RETURN(const DropForecast forecast, member.ForecastDrop(attempts));
        all.freed_now += forecast.freed_now;
        all.freed_later += forecast.freed_later;
        for (const std::string& warning : forecast.warnings) {
          all.warnings.push_back("member " + member.path().filename().string() + ": " + warning);
        }
        return Status::Ok();
      }));
  return all;
}

Result<DropReport> GroupStore::Drop(std::span<const CheckpointId> ids, const DropOptions& options) {
  DropReport report;
  std::optional<std::vector<NamedAttempt>> steps;
  std::set<MemberId> members;  // that hold something of them
  VARVE_RETURN_IF_ERROR(Propose([&](const GroupState& state) -> Result<std::optional<RecordBody>> {
    if (!steps.has_value()) {
      VARVE_ASSIGN_OR_RETURN(steps, ResolveForDrop(state, ids));
      members = MembersOf(state, *steps);
    }
    DropRecord record;
    for (const NamedAttempt& step : *steps) {
      if (state.Names(step)) record.steps.push_back(step);
    }
    if (record.steps.empty()) return kDone;
    return std::optional<RecordBody>(std::move(record));
  }));
  for (const NamedAttempt& step : *steps) report.dropped.push_back(step.id);
  const ReclaimOptions reclaim;
  report.reclaim.disk_bytes_before = MeasureFolder(place_.root).allocated_bytes;
  const Status swept = SweepMembers(members, options.reclaim ? &reclaim : nullptr, &report.reclaim);
  report.warnings = std::exchange(report.reclaim.warnings, {});
  if (!swept.ok()) {
    return swept.WithContext("the steps are dropped, but their space is not back");
  }
  report.reclaim.disk_bytes_after = MeasureFolder(place_.root).allocated_bytes;
  return report;
}

Result<ReclaimReport> GroupStore::Reclaim(const ReclaimOptions& options) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  ReclaimReport report;
  report.disk_bytes_before = MeasureFolder(place_.root).allocated_bytes;
  std::set<MemberId> members;
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  log()->With([&](const GroupState& state) {
    for (const auto& [id, member] : state.members) members.insert(id);
  });
  VARVE_RETURN_IF_ERROR(SweepMembers(members, &options, &report));
  VARVE_RETURN_IF_ERROR(RemoveDebris(place_));
  report.disk_bytes_after = MeasureFolder(place_.root).allocated_bytes;
  return report;
}

Status GroupStore::SweepMembers(const std::set<MemberId>& members, const ReclaimOptions* reclaim,
                                ReclaimReport* report) {
  for (const MemberId id : members) {
    if (own_.store == nullptr || id != author().member) {
      VARVE_RETURN_IF_ERROR(SweepOther(id, reclaim, report));
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const Swept swept, SweepMember(place_, own_.store.get()));
    AddNew(swept.warnings, &report->warnings);
    if (reclaim == nullptr) continue;
    VARVE_ASSIGN_OR_RETURN(const ReclaimReport reclaimed, own_.store->Reclaim(*reclaim));
    Add(reclaimed, report);
  }
  return SweepCatalogues(place_);
}

Result<bool> GroupStore::WasRemoved(MemberId member) const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  return log()->With([&](const GroupState& state) { return !state.members.contains(member); });
}

Status GroupStore::SweepOther(MemberId member, const ReclaimOptions* reclaim,
                              ReclaimReport* report) {
  const Status swept = SweepUnlocked(member, reclaim, report);
  if (swept.ok()) return swept;
  VARVE_ASSIGN_OR_RETURN(const bool was_removed, WasRemoved(member));
  return was_removed ? Status::Ok() : swept.WithContext("member " + MemberName(member));
}

// A member that a rank has open is swept by that rank.
Status GroupStore::SweepUnlocked(MemberId member, const ReclaimOptions* reclaim,
                                 ReclaimReport* report) {
  // Opening a store reads much before it takes its lock.
  if (IsMemberLocked(place_.root, member)) return Status::Ok();
  auto opened = OpenMember(place_, member, options_, /*for_writing=*/true);
  if (opened.status().code() == StatusCode::kLocked) return Status::Ok();
  if (opened.status().code() == StatusCode::kNotFound) {
    VARVE_RETURN_IF_ERROR(RemoveMemberIfUnused(place_, member, nullptr));
    // Space that is still there cannot come back. Nothing is left of a folder that was moved away.
    std::error_code error;
    return fs::exists(MemberFolder(place_.root, member), error) ? RequireNotLost(place_, member)
                                                                : Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(opened.status());
  VARVE_ASSIGN_OR_RETURN(const Swept swept, SweepMember(place_, opened->get()));
  AddNew(swept.warnings, &report->warnings);
  if (reclaim != nullptr) {
    VARVE_ASSIGN_OR_RETURN(const ReclaimReport reclaimed, (*opened)->Reclaim(*reclaim));
    Add(reclaimed, report);
  }
  return RemoveMemberIfUnused(place_, member, *std::move(opened));
}

void GroupStore::NoteWarnings(const std::vector<std::string>& warnings) {
  const std::lock_guard lock(warnings_mutex_);
  AddNew(warnings, &warnings_);
}

std::vector<std::string> GroupStore::TakeWarnings() {
  const std::lock_guard lock(warnings_mutex_);
  return std::exchange(warnings_, {});
}

void GroupStore::SweepLater() {
  const uint64_t closed = log()->With([](const GroupState& state) { return state.num_closed; });
  const bool is_snapshot_due = author().rank == 0 && log()->IsSnapshotDue();
  if (closed != closed_when_swept_ || is_snapshot_due) sweeper_.Ask();
}

Result<bool> GroupStore::SweepSomeOfOwn() {
  if (author().rank == 0) log()->TakeSnapshotIfDue().IgnoreError();
  const uint64_t closed = log()->With([](const GroupState& state) { return state.num_closed; });
  VARVE_ASSIGN_OR_RETURN(const Swept swept, SweepMember(place_, own_.store.get(), kDropsARound));
  NoteWarnings(swept.warnings);
  dropped_since_reclaim_ += swept.dropped;
  if (!swept.is_all) return true;
  if (dropped_since_reclaim_ > 0) VARVE_RETURN_IF_ERROR(own_.store->Reclaim({}).status());
  dropped_since_reclaim_ = 0;
  if (author().rank == 0) VARVE_RETURN_IF_ERROR(SweepCatalogues(place_));
  closed_when_swept_ = closed;
  return false;
}

Result<StoreStats> GroupStore::Stats() const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  StoreStats stats;
  std::map<MemberId, GroupMember> members;
  log()->With([&](const GroupState& state) {
    members = state.members;
    stats.num_runs = state.runs.size();
    for (const auto& [name, run] : state.runs) {
      stats.num_steps += run.steps.size();
      for (const auto& [step, entry] : run.steps) {
        stats.logical_bytes += state.FindAttempt(entry.attempt)->Totals().logical_bytes;
      }
    }
  });
  stats.format_version = place_.file.version;
  const auto add_rows = [](const auto& from, auto* to, auto name) {
    for (const auto& use : from) {
      auto it = std::find_if(to->begin(), to->end(),
                             [&](const auto& row) { return row.*name == use.*name; });
      if (it == to->end()) {
        to->push_back(use);
        continue;
      }
      it->raw_bytes += use.raw_bytes;
      it->stored_bytes += use.stored_bytes;
      if constexpr (requires { it->num_chunks; }) it->num_chunks += use.num_chunks;
      if constexpr (requires { it->num_planes; }) it->num_planes += use.num_planes;
    }
  };
  for (const auto& [id, info] : members) {
    const auto member = MemberForReading(id);
    if (member.status().code() == StatusCode::kNotFound) continue;  // not made yet, or just removed
    const Result<StoreStats> found = member.ok() ? (*member)->Stats() : member.status();
    if (!found.ok()) {
      VARVE_ASSIGN_OR_RETURN(const bool was_removed, WasRemoved(id));
      if (was_removed) continue;
      const bool is_named = found.status().message().find(MemberName(id)) != std::string::npos;
      return is_named ? found.status() : found.status().WithContext("member " + MemberName(id));
    }
    const StoreStats& part = *found;
    stats.num_chunks += part.num_chunks;
    stats.unique_bytes += part.unique_bytes;
    stats.stored_bytes += part.stored_bytes;
    stats.pending_bytes += part.pending_bytes;
    for (const std::string& warning : part.warnings) {
      if (IsAboutDiskBytes(warning)) continue;  // the root's bytes are measured below
      stats.warnings.push_back("member " + MemberName(id) + ": " + warning);
    }
    add_rows(part.by_codec, &stats.by_codec, &CodecUse::codec);
    add_rows(part.by_coder, &stats.by_coder, &CoderUse::coder);
  }
  const FolderUse use = MeasureFolder(place_.root);
  stats.disk_bytes = use.allocated_bytes;
  stats.num_files = use.num_files;
  for (const std::string& error : use.errors) stats.warnings.push_back(DiskBytesWarning(error));
  return stats;
}

Status GroupStore::CatchUp() const {
  VARVE_RETURN_IF_ERROR(log()->Refresh());
  const std::lock_guard lock(readers_mutex_);
  for (const auto& [id, member] : readers_) {
    if (member == nullptr) continue;
    const Status caught_up = member->CatchUp();
    if (caught_up.ok()) continue;
    VARVE_ASSIGN_OR_RETURN(const bool was_removed, WasRemoved(id));
    if (!was_removed) return caught_up.WithContext("member " + MemberName(id));
  }
  return Status::Ok();
}

}  // namespace varve::internal
