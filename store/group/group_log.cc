// SPDX-License-Identifier: Apache-2.0
//
// Why a record that was read is the one that belongs there: numbers are removed in rising order,
// and only below the snapshot before the newest. A process that slept through a removal may link
// its record to a number that has become free again. But then the number before that is free, too:
// whoever reads on looks there before he believes what he read, and begins anew at the newest
// snapshot.
#include "store/group/group_log.h"

#include <algorithm>
#include <thread>

namespace varve {
namespace {

constexpr int kReloadAttempts = 20;

std::string RecordName(uint64_t number) {
  return "record " + std::to_string(number) + " of the log";
}

}  // namespace

void GroupLog::Sleep(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

void GroupLog::Pause(int* attempt) const {
  pause_(std::chrono::milliseconds(std::min(++*attempt, 20)));
}

Status GroupLog::Refresh() {
  const std::lock_guard lock(mutex_);
  return RefreshLocked();
}

Status GroupLog::RefreshLocked() {
  if (state_.next == 1) return Reload();
  // Cheap while nothing has happened, which is most of the time of whoever waits.
  VARVE_ASSIGN_OR_RETURN(const auto first, log_->Read(state_.next));
  if (!first.has_value()) {
    VARVE_ASSIGN_OR_RETURN(const bool behind, IsGone(state_.next - 1));
    return behind ? Reload() : Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, log_->List(state_.next));
  if (numbers.empty()) return Reload();
  std::vector<std::string> records;
  for (uint64_t number = state_.next; number <= numbers.back(); ++number) {
    VARVE_ASSIGN_OR_RETURN(auto bytes, log_->Read(number));
    if (!bytes.has_value()) return Reload();
    records.push_back(*std::move(bytes));
  }
  VARVE_ASSIGN_OR_RETURN(const bool behind, IsGone(state_.next - 1));
  if (behind) return Reload();
  for (const std::string& bytes : records) {
    VARVE_RETURN_IF_ERROR(ApplyBytes(state_.next, bytes));
  }
  return Status::Ok();
}

Result<bool> GroupLog::IsGone(uint64_t number) const {
  VARVE_ASSIGN_OR_RETURN(const auto bytes, log_->Read(number));
  return !bytes.has_value();
}

Status GroupLog::ApplyBytes(uint64_t number, const std::string& bytes) {
  const Result<GroupRecord> record = DecodeGroupRecord(seed_, number, bytes);
  if (!record.ok()) return record.status().WithContext(RecordName(number));
  state_.Apply(*record);
  return Status::Ok();
}

// From the newest snapshot, or from the first record, on. Records vanish while this looks when
// others take snapshots; then it looks again.
Status GroupLog::Reload() {
  for (int attempt = 0; attempt < kReloadAttempts;) {
    VARVE_ASSIGN_OR_RETURN(const bool done, TryReload());
    if (done) return Status::Ok();
    Pause(&attempt);
  }
  return Status::Corruption("the log has gaps: a record is missing that no snapshot makes up for");
}

// False: a record was missing on the way.
Result<bool> GroupLog::TryReload() {
  VARVE_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, log_->List(1));
  if (numbers.empty()) {
    if (state_.next > 1) return false;
    state_ = GroupState{};
    return true;
  }
  GroupState base;
  std::vector<GroupRecord> records;  // newest first
  for (uint64_t number = numbers.back(); number > 0; --number) {
    VARVE_ASSIGN_OR_RETURN(const auto bytes, log_->Read(number));
    if (!bytes.has_value()) return false;
    Result<GroupRecord> record = DecodeGroupRecord(seed_, number, *bytes);
    if (!record.ok()) return record.status().WithContext(RecordName(number));
    records.push_back(*std::move(record));
    const auto* snapshot = std::get_if<SnapshotRecord>(&records.back().body);
    if (snapshot == nullptr) continue;
    if (snapshot->state->next != number) {
      return Status::Corruption(RecordName(number) + ": a snapshot of record " +
                                std::to_string(snapshot->state->next));
    }
    base = *snapshot->state;
    break;
  }
  for (auto it = records.rbegin(); it != records.rend(); ++it) base.Apply(*it);
  if (base.next < state_.next) return false;  // the listing missed what was just being made
  state_ = std::move(base);
  return true;
}

Status GroupLog::Propose(const Proposal& propose) {
  const std::lock_guard lock(mutex_);
  while (true) {
    VARVE_RETURN_IF_ERROR(RefreshLocked());
    VARVE_ASSIGN_OR_RETURN(const std::optional<GroupRecord> record, propose(state_));
    if (!record.has_value()) break;
    VARVE_RETURN_IF_ERROR(Append(*record));
  }
  // The change is made; a snapshot that cannot be taken now is taken after a later one.
  TakeSnapshotIfDue().IgnoreError();
  return Status::Ok();
}

// One attempt at the next number. Whatever comes of it, the state tells.
Status GroupLog::Append(const GroupRecord& record) {
  const std::string bytes = EncodeGroupRecord(seed_, state_.next, record);
  // A record that nobody can read would be the end of the log.
  const Status readable = DecodeGroupRecord(seed_, state_.next, bytes).status();
  if (!readable.ok()) {
    return Status::InvalidArgument("not written to the log, because it could not be read again: " +
                                   readable.message());
  }
  VARVE_ASSIGN_OR_RETURN(const CreateOutcome outcome, log_->Create(state_.next, bytes));
  if (outcome != CreateOutcome::kOk || state_.next == 1) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const bool behind, IsGone(state_.next - 1));
  if (!behind) state_.Apply(record);
  return Status::Ok();
}

Status GroupLog::TakeSnapshotIfDue() {
  // With 65,536 attempts a snapshot is as large as 1,024 saves of some ranks.
  const uint64_t interval =
      std::clamp(state_.attempts.size() / 64, kSnapshotInterval, kMaxSnapshotInterval);
  if (state_.next - state_.snapshot <= interval) return Status::Ok();
  const uint64_t snapshot_before = state_.snapshot;
  VARVE_RETURN_IF_ERROR(Append({{}, SnapshotRecord{std::make_shared<const GroupState>(state_)}}));
  VARVE_RETURN_IF_ERROR(RefreshLocked());
  if (state_.snapshot_before < snapshot_before) return Status::Ok();  // somebody else was first
  VARVE_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, log_->List(1));
  for (const uint64_t number : numbers) {  // rising
    if (number >= state_.snapshot_before) break;
    VARVE_RETURN_IF_ERROR(log_->Remove(number));
  }
  return Status::Ok();
}

}  // namespace varve
