// SPDX-License-Identifier: Apache-2.0
#include "store/remote/remote_log.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/random_number.h"
#include "base/util.h"

namespace varve::internal {

namespace {

constexpr size_t kPage = 1000;
constexpr int kMaxUnknown = 5;
constexpr int kMaxConflicts = 1000;
constexpr int kMaxLooks = 20;
// Old states are removed when there are twice as many. A process that has slept since it read one
// of those that are left then finds that it is late. One that slept for longer creates a state that
// nobody reads.
constexpr size_t kStatesKept = 64;
constexpr uint64_t kMaxBodyBytes = uint64_t{256} << 20;

}  // namespace

Result<std::string> ReadRange(const Objects& objects, const BlobRange& range) {
  const std::string name = objects.url() + ": blob " + range.blob;
  if (range.bytes > kMaxBodyBytes) {
    return Status::Corruption(name + ": a part of " + std::to_string(range.bytes) +
                              " bytes, expected at most " + std::to_string(kMaxBodyBytes));
  }
  std::string bytes(range.bytes, '\0');
  VARVE_ASSIGN_OR_RETURN(
      const auto size,
      objects.GetBlob(range.blob, range.offset,
                      std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  if (!size.has_value()) return Status::Corruption(name + " is missing");
  if (*size == bytes.size() && ComputeDigest(0, AsBytes(bytes)) == range.digest) return bytes;
  return Status::Corruption(name + ": the " + std::to_string(range.bytes) + " bytes from " +
                            std::to_string(range.offset) + " on are not what was pushed");
}

Result<std::vector<std::string>> RemoteLog::ListStates() const {
  std::vector<std::string> names;
  for (std::string after;;) {
    VARVE_ASSIGN_OR_RETURN(const auto page, objects_->ListRecords(kStatePrefix, after, kPage));
    for (const std::string& name : page) {
      if (ParseStateName(name).has_value()) names.push_back(name);
    }
    if (page.size() < kPage) return names;
    after = page.back();
  }
}

Result<RemoteState> RemoteLog::ReadNewest() const {
  for (int look = 0; look < kMaxLooks; ++look) {
    VARVE_ASSIGN_OR_RETURN(const auto names, ListStates());
    if (names.empty()) return RemoteState();
    VARVE_ASSIGN_OR_RETURN(const auto text, objects_->ReadRecord(names.back()));
    if (!text.has_value()) continue;  // somebody has removed it since, so there are newer ones
    const std::string where = objects_->url() + ": record " + names.back();
    VARVE_ASSIGN_OR_RETURN(RemoteState state, DecodeRemoteState(*text, where));
    if (state.number == ParseStateName(names.back())) return state;
    return Status::Corruption(where + " says that it is number " + std::to_string(state.number));
  }
  return Status::Unavailable(objects_->url() + ": its states change too fast to be read");
}

// A state that was created counts if it is the newest. If there are later ones, they may have been
// made without it: who has slept can create a number that was removed meanwhile.
Result<bool> RemoteLog::IsNewest(uint64_t number) const {
  const std::string before = number == 1 ? "" : StateName(number - 1);
  VARVE_ASSIGN_OR_RETURN(const auto names, objects_->ListRecords(kStatePrefix, before, 2));
  return names.size() == 1 && names[0] == StateName(number);
}

Result<RemoteState> RemoteLog::Append(const Change& change, const RemoteState* known) {
  Status unknown;
  for (int conflicts = 0, unknowns = 0; conflicts < kMaxConflicts && unknowns < kMaxUnknown;) {
    RemoteState next;
    const bool is_known = known != nullptr;
    if (is_known) {
      next = *std::exchange(known, nullptr);
    } else {
      VARVE_ASSIGN_OR_RETURN(next, ReadNewest());
    }
    VARVE_ASSIGN_OR_RETURN(const bool is_wanted, change(&next));
    if (!is_wanted && is_known) continue;
    if (!is_wanted) return next;
    ++next.number;
    const std::string text = EncodeRemoteState(next);
    if (text.size() > kMaxRecordBytes) {
      return Status::FailedPrecondition(
          objects_->url() + " has " + std::to_string(next.snapshots.size()) +
          " snapshots, which is too many: remove old ones with varve reclaim -s URL --keep N");
    }
    const auto outcome = objects_->CreateRecord(StateName(next.number), text);
    if (!outcome.ok() && outcome.status().code() != StatusCode::kUnavailable) {
      return outcome.status();
    }
    if (outcome.ok() && *outcome == CreateOutcome::kOk) {
      VARVE_ASSIGN_OR_RETURN(const bool counts, IsNewest(next.number));
      if (next.number % kStatesKept == 0) RemoveOld();
      if (counts) return next;
      continue;
    }
    if (outcome.ok() && *outcome == CreateOutcome::kExists) {
      ++conflicts;
      std::this_thread::sleep_for(std::chrono::microseconds(RandomNumber() % 20'000));
      continue;
    }
    ++unknowns;
    unknown = outcome.ok() ? Status::Unavailable(objects_->url() + ": creation of record " +
                                                 StateName(next.number) + ": outcome unknown")
                           : outcome.status();
  }
  if (!unknown.ok()) return unknown;
  return Status::Unavailable(objects_->url() + ": others change it too fast; try again later");
}

// Best effort: what stays is removed later.
void RemoteLog::RemoveOld() const {
  const auto names = ListStates();
  if (!names.ok() || names->size() < 2 * kStatesKept) return;
  for (size_t i = 0; i < names->size() - kStatesKept; ++i) {
    // The first stays. Without it, who sees an empty list by mistake could create it again.
    if ((*names)[i] != StateName(1)) objects_->RemoveRecord((*names)[i]).IgnoreError();
  }
}

Result<RemoteSnapshot> RemoteLog::ChooseSnapshot(const RemoteState& state,
                                                 std::optional<uint64_t> number) const {
  if (state.snapshots.empty()) {
    return Status::NotFound("there is no snapshot in " + objects_->url());
  }
  if (!number.has_value()) return state.snapshots.back();
  const RemoteSnapshot* const snapshot = state.Find(*number);
  if (snapshot != nullptr) return *snapshot;
  return Status::NotFound("there is no snapshot " + std::to_string(*number) + " in " +
                          objects_->url());
}

Result<SnapshotBody> RemoteLog::ReadBody(const RemoteSnapshot& snapshot) const {
  const auto text = ReadRange(*objects_, snapshot.body);
  if (!text.ok()) return WhyUnreadable(snapshot, text.status());
  return DecodeSnapshotBody(*text,
                            objects_->url() + ": snapshot " + std::to_string(snapshot.number));
}

Status RemoteLog::WhyUnreadable(const RemoteSnapshot& snapshot, Status error) const {
  if (error.code() != StatusCode::kCorruption) return error;
  const auto newest = ReadNewest();
  if (!newest.ok() || newest->Find(snapshot.number) != nullptr) return error;
  return Status::FailedPrecondition(objects_->url() + ": snapshot " +
                                    std::to_string(snapshot.number) +
                                    " was removed while it was read; try again");
}

}  // namespace varve::internal
