// SPDX-License-Identifier: Apache-2.0
//
// How a reader knows that a record is the one that belongs there. Numbers are removed in rising
// order, and only below the snapshot before the newest. A process that slept through a removal may
// link its record to a number that has become free again. But then the record before it has been
// removed, too, and another process that slept may have linked one there. So each process remembers
// the stamp of the last record that it knows. It reads on, looks at that stamp again, and only then
// believes what it read. If the stamp has changed, it starts again at the newest snapshot.
#include "store/group/group_log.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <thread>

#include "base/random_number.h"
#include "base/util.h"

namespace varve::internal {

namespace {

constexpr int kReloadAttempts = 20;

constexpr std::string_view kStatesFolder = "states";
constexpr std::string_view kNewestName = "newest";

std::string RecordName(uint64_t number) {
  return "record " + std::to_string(number) + " of the log";
}

// Returns "record 7 of the log is", or "records 7 to 9 of the log are".
std::string NumbersOfRecords(uint64_t first, uint64_t last) {
  if (first == last) return RecordName(last) + " is";
  return "records " + std::to_string(first) + " to " + std::to_string(last) + " of the log are";
}

// Names sort like the numbers.
std::string Digits(uint64_t number) {
  char digits[21];
  std::snprintf(digits, sizeof(digits), "%020llu", static_cast<unsigned long long>(number));
  return digits;
}

// Names the file of a snapshot. Two processes that take the same snapshot write the same file.
// Others do not meet.
std::string StateName(uint64_t number, const Digest& digest) {
  return std::string(kStatesFolder) + "/" + Digits(number) + "." + ToHex(digest);
}

// A line of text: the number, and the digest of its digits.
std::string NoteOf(uint64_t seed, uint64_t number) {
  const std::string digits = Digits(number);
  return digits + " " + ToHex(ComputeDigest(seed, AsBytes(digits))) + "\n";
}

// No reader needs these.
bool IsForWritersOnly(const RecordBody& body) {
  return std::holds_alternative<OwnRecord>(body) || std::holds_alternative<BeginRecord>(body) ||
         std::holds_alternative<PreparedRecord>(body) || std::holds_alternative<AbortRecord>(body);
}

}  // namespace

const GroupLog::Pace GroupLog::kUsualPace;

void GroupLog::Sleep(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

void GroupLog::Pause(int* num_pauses, const Pace& pace) const {
  const bool is_first = (*num_pauses)++ == 0;
  pause_(is_first
             ? pace.first
             : std::clamp(std::chrono::milliseconds(*num_pauses), pace.shortest, pace.longest));
}

// At a start of the job all ranks want the next number, and one gets it. The others try again after
// random pauses that grow. Otherwise each would write a file for each record that another appends.
void GroupLog::PauseAfterLosses(int losses) const {
  constexpr int kLossesWithoutPause = 2;
  constexpr int kLongestMs = 256;
  if (losses <= kLossesWithoutPause) return;
  const int longest = std::min(1 << std::min(losses, 16), kLongestMs);
  pause_(std::chrono::milliseconds(1 + RandomNumber() % static_cast<unsigned>(longest)));
}

// For waits: reads the next record if it is there. If so much was appended that even the record
// before the next is gone, this does not notice that the log has gone on. So it looks back now and
// then.
Result<bool> GroupLog::Poll() {
  constexpr std::chrono::seconds kBetweenLooksBack(1);
  const std::lock_guard lock(mutex_);
  const uint64_t next = state_.next;
  if (next == 1) {
    VARVE_RETURN_IF_ERROR(Reload());
  } else {
    const auto since = std::chrono::steady_clock::now() - looked_back_;
    VARVE_RETURN_IF_ERROR(ReadOn(1, since >= kBetweenLooksBack));
  }
  return state_.next != next;
}

Status GroupLog::Refresh() {
  const std::lock_guard lock(mutex_);
  return RefreshLocked();
}

Status GroupLog::RefreshLocked() {
  if (state_.next == 1) return Reload();
  return ReadOn(std::numeric_limits<size_t>::max(), /*looks_back=*/true);
}

// Takes at most this many more records. Records have no gaps. So the first missing one is the end,
// unless the record before it is gone, too.
Status GroupLog::ReadOn(size_t most, bool looks_back) {
  std::vector<std::string> records;
  std::string stamp;
  while (records.size() < most) {
    VARVE_ASSIGN_OR_RETURN(auto bytes, log_->Read(state_.next + records.size(), &stamp));
    if (!bytes.has_value()) break;
    records.push_back(*std::move(bytes));
  }
  if (records.empty() && !looks_back) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const bool behind, IsBehind());  // looked at last: see above
  if (behind) return Reload();
  looked_back_ = std::chrono::steady_clock::now();
  if (records.empty()) return Status::Ok();
  VARVE_RETURN_IF_ERROR(log_->Sync());  // before anyone acts on them
  for (const std::string& bytes : records) {
    VARVE_RETURN_IF_ERROR(ApplyBytes(state_.next, bytes));
  }
  stamp_ = std::move(stamp);
  return Status::Ok();
}

// True when the last known record has been removed since.
Result<bool> GroupLog::IsBehind() const {
  VARVE_ASSIGN_OR_RETURN(const std::string stamp, log_->Stamp(state_.next - 1));
  return stamp != stamp_;
}

Status GroupLog::ApplyBytes(uint64_t number, const std::string& bytes) {
  const Result<GroupRecord> record = DecodeGroupRecord(seed_, number, bytes);
  if (!record.ok()) return record.status().WithContext(RecordName(number));
  state_.Apply(*record);
  return Status::Ok();
}

// Reads from the newest snapshot, or from the first record, on. Records vanish during that when
// others take snapshots. Then it looks again.
Status GroupLog::Reload() {
  for (int attempt = 0; attempt < kReloadAttempts;) {
    VARVE_ASSIGN_OR_RETURN(const bool done, TryReload());
    if (done) return Status::Ok();
    Pause(&attempt, kUsualPace);
  }
  return Status::Corruption(missing_);
}

// Returns false when a record was missing on the way.
Result<bool> GroupLog::TryReload() {
  missing_.clear();
  VARVE_ASSIGN_OR_RETURN(const uint64_t noted, NotedNewest());  // before the records
  VARVE_ASSIGN_OR_RETURN(std::vector<uint64_t> numbers, log_->List(1));
  const uint64_t newest = numbers.empty() ? 0 : numbers.back();
  // The note names a durable record, and those before it are durable, too.
  if (newest > noted) VARVE_RETURN_IF_ERROR(log_->Sync());
  if (noted > newest) {
    VARVE_ASSIGN_OR_RETURN(const std::string listed_late, log_->Stamp(noted));
    if (listed_late.empty()) {
      missing_ = NumbersOfRecords(newest + 1, noted) + " missing: log/" + std::string(kNewestName) +
                 " says that the log reached " + std::to_string(noted) +
                 ". Bring back what is missing, or copy the root anew if this is a copy that was " +
                 "made while a job saved. To go on without, remove log/" + std::string(kNewestName);
      return false;
    }
    numbers.push_back(noted);
  }
  if (numbers.empty()) {
    if (state_.next > 1) {
      missing_ = RecordName(state_.next - 1) + " was read before, and the log is empty now";
      return false;
    }
    state_ = GroupState{};
    stamp_.clear();
    return true;
  }
  GroupState base;
  VARVE_ASSIGN_OR_RETURN(std::string stamp, log_->Stamp(numbers.back()));
  std::vector<GroupRecord> records;  // newest first
  for (uint64_t number = numbers.back(); number > 0; --number) {
    VARVE_ASSIGN_OR_RETURN(const auto bytes, log_->Read(number));
    if (!bytes.has_value()) {
      missing_ = "the log has a gap: " + RecordName(number) +
                 " is missing, and no snapshot makes up for it. Bring it back from a copy of the " +
                 "root";
      return false;
    }
    Result<GroupRecord> record = DecodeGroupRecord(seed_, number, *bytes);
    if (!record.ok()) return record.status().WithContext(RecordName(number));
    records.push_back(*std::move(record));
    const auto* snapshot = std::get_if<SnapshotRecord>(&records.back().body);
    if (snapshot == nullptr) continue;
    VARVE_ASSIGN_OR_RETURN(const auto state, ReadSnapshot(number, *snapshot));
    if (state == nullptr) return false;
    base = *state;
    break;
  }
  for (auto it = records.rbegin(); it != records.rend(); ++it) base.Apply(*it);
  if (base.next < state_.next) {  // the listing missed what was just being made
    missing_ = RecordName(state_.next - 1) + " was read before, and the log lists none after " +
               std::to_string(base.next - 1);
    return false;
  }
  state_ = std::move(base);
  stamp_ = std::move(stamp);
  return true;
}

// Returns 0 when there is no note. A note that a crash of its host has torn is none. Records have
// no gaps, so only the loss of the newest needs a note.
Result<uint64_t> GroupLog::NotedNewest() const {
  VARVE_ASSIGN_OR_RETURN(const auto bytes, log_->Get(kNewestName));
  if (!bytes.has_value()) return uint64_t{0};
  uint64_t number = 0;
  std::from_chars(bytes->data(), bytes->data() + bytes->size(), number);
  return *bytes == NoteOf(seed_, number) ? number : uint64_t{0};
}

// The newest known record is durable by now. If two processes note at the same time, the one with
// the lower number may come last. Then the note says less than it could, and nothing wrong.
Status GroupLog::NoteNewest() {
  if (state_.version < kVersionOfSlots) return Status::Ok();
  return log_->Put(kNewestName, NoteOf(seed_, state_.next - 1), /*durable=*/false);
}

Status GroupLog::Propose(const Proposal& propose) {
  const std::lock_guard lock(mutex_);
  bool is_to_be_noted = false, is_commit = false;
  for (int losses = 0;;) {
    VARVE_RETURN_IF_ERROR(RefreshLocked());
    VARVE_ASSIGN_OR_RETURN(const std::optional<GroupRecord> record, propose(state_));
    if (!record.has_value()) break;
    const uint64_t number = state_.next;
    VARVE_RETURN_IF_ERROR(Append(*record));
    if (state_.next == number) PauseAfterLosses(++losses);
    is_to_be_noted = is_to_be_noted || !IsForWritersOnly(record->body);
    is_commit = std::holds_alternative<CommitRecord>(record->body);
  }
  // The change is made. What fails now comes with a later change.
  if (is_to_be_noted) NoteNewest().IgnoreError();
  if (!is_commit) TakeSnapshotIfDueLocked().IgnoreError();
  return Status::Ok();
}

// Tries the next number once. The state tells the outcome.
Status GroupLog::Append(const GroupRecord& record) {
  const std::string bytes = EncodeGroupRecord(seed_, state_.next, record);
  // An unreadable record would be the end of the log for everybody.
  const Status readable = DecodeGroupRecord(seed_, state_.next, bytes).status();
  if (!readable.ok()) {
    return Status::InvalidArgument("not written to the log, because it could not be read again: " +
                                   readable.message());
  }
  VARVE_ASSIGN_OR_RETURN(const CreateOutcome outcome, log_->Create(state_.next, bytes));
  if (outcome != CreateOutcome::kOk || state_.next == 1) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(std::string stamp, log_->Stamp(state_.next));
  VARVE_ASSIGN_OR_RETURN(const bool behind, IsBehind());  // looked at last: see above
  if (behind || stamp.empty()) return Status::Ok();
  state_.Apply(record);
  stamp_ = std::move(stamp);
  return Status::Ok();
}

bool GroupLog::IsSnapshotDue() const {
  const std::lock_guard lock(mutex_);
  return IsSnapshotDueLocked();
}

bool GroupLog::IsSnapshotDueLocked() const {
  // With 65,536 attempts a snapshot is as large as 1,024 saves of a few ranks.
  const uint64_t interval =
      std::clamp(state_.attempts.size() / 64, kSnapshotInterval, kMaxSnapshotInterval);
  return state_.next - state_.snapshot > interval;
}

Status GroupLog::TakeSnapshotIfDue() {
  const std::lock_guard lock(mutex_);
  return TakeSnapshotIfDueLocked();
}

Status GroupLog::TakeSnapshotIfDueLocked() {
  if (!IsSnapshotDueLocked()) return Status::Ok();
  const uint64_t snapshot_before = state_.snapshot;
  VARVE_ASSIGN_OR_RETURN(SnapshotRecord record, PutSnapshot());
  VARVE_RETURN_IF_ERROR(Append({{}, std::move(record)}));
  VARVE_RETURN_IF_ERROR(RefreshLocked());
  if (state_.snapshot_before < snapshot_before) return Status::Ok();  // another process was first
  return RemoveBelow(state_.snapshot_before);
}

// In groups that have files of snapshots, returns the record of one. Its file is durable.
Result<SnapshotRecord> GroupLog::PutSnapshot() const {
  const SnapshotRecord whole{std::make_shared<const GroupState>(state_)};
  if (state_.version < kVersionOfSlots) return whole;
  const std::string bytes = EncodeGroupRecord(seed_, state_.next, {{}, whole});
  const Status readable = DecodeGroupRecord(seed_, state_.next, bytes).status();
  if (!readable.ok()) return readable;
  const SnapshotRecord record{nullptr, ComputeDigest(seed_, AsBytes(bytes))};
  VARVE_RETURN_IF_ERROR(log_->Put(StateName(state_.next, record.file), bytes, /*durable=*/true));
  return record;
}

// Returns null when its file is gone, because it is not the newest any more.
Result<std::shared_ptr<const GroupState>> GroupLog::ReadSnapshot(uint64_t number,
                                                                 const SnapshotRecord& record) {
  std::shared_ptr<const GroupState> state = record.state;
  if (state == nullptr) {
    const std::string name = StateName(number, record.file);
    VARVE_ASSIGN_OR_RETURN(const auto bytes, log_->Get(name));
    if (!bytes.has_value()) {
      missing_ = "file " + name + " of the log is missing";
      return state;
    }
    if (ComputeDigest(seed_, AsBytes(*bytes)) != record.file) {
      return Status::Corruption("file " + name + " of the log: its digest is not that of record " +
                                std::to_string(number));
    }
    Result<GroupRecord> whole = DecodeGroupRecord(seed_, number, *bytes);
    if (!whole.ok()) return whole.status().WithContext("file " + name + " of the log");
    const auto* snapshot = std::get_if<SnapshotRecord>(&whole->body);
    if (snapshot == nullptr || snapshot->state == nullptr) {
      return Status::Corruption("file " + name + " of the log is no snapshot");
    }
    state = snapshot->state;
  }
  if (state->next == number) return state;
  return Status::Corruption(RecordName(number) + ": a snapshot of record " +
                            std::to_string(state->next));
}

// Removes records first. So a process that finds a snapshot finds its file, or a newer snapshot.
Status GroupLog::RemoveBelow(uint64_t number) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, log_->List(1));
  for (const uint64_t old : numbers) {  // rising
    if (old >= number) break;
    VARVE_RETURN_IF_ERROR(log_->Remove(old));
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<std::string> states, log_->Names(kStatesFolder));
  for (const std::string& name : states) {
    if (name >= Digits(number)) continue;
    VARVE_RETURN_IF_ERROR(log_->Erase(std::string(kStatesFolder) + "/" + name));
  }
  return Status::Ok();
}

}  // namespace varve::internal
