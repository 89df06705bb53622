// SPDX-License-Identifier: Apache-2.0
#include "store/remote/remote_log.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/random_number.h"
#include "base/util.h"

namespace varve::internal {

namespace {

constexpr size_t kPage = 1000;
// A change ends after so many unknown outcomes, but not before this time. In a folder each removal
// of debris may make one, and they come fast.
constexpr int kMaxUnknown = 5;
constexpr std::chrono::seconds kShortestTry{2};
constexpr int kMaxConflicts = 1000;
constexpr int kMaxLooks = 20;
constexpr int kMaxMisses = 4;
constexpr std::chrono::milliseconds kPauseAfterMiss{50};
// Old states are removed when there are twice as many. A process that has slept since it read one
// of those that are left then finds that it is late. One that slept for longer creates a state that
// nobody reads.
constexpr size_t kStatesKept = 64;
constexpr uint64_t kMaxBodyBytes = uint64_t{256} << 20;

// Those who meet do not meet again at once.
void PauseBriefly() {
  std::this_thread::sleep_for(std::chrono::microseconds(RandomNumber() % 20'000));
}

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

Result<RemoteLog::Listed> RemoteLog::List() const {
  Listed listed;
  for (std::string after;;) {
    VARVE_ASSIGN_OR_RETURN(const auto page,
                           objects_->ListRecords(kStateAndNotePrefix, after, kPage));
    for (const std::string& name : page) {
      if (const auto state = ParseStateName(name)) listed.states.push_back(*state);
      if (const auto note = ParseNoteName(name)) listed.notes.push_back(*note);
    }
    if (page.size() < kPage) return listed;
    after = page.back();
  }
}

// Returns the name of any blob of varve that is whole, or "" when there is none.
Result<std::string> RemoteLog::FindBlob() const {
  std::string found;
  const Status status = objects_->ListBlobs([&found](const BlobInfo& blob) {
    if (!blob.is_whole || !ParseBlobName(blob.name).has_value()) return Status::Ok();
    found = blob.name;
    return Status::NotFound("");  // ends the list
  });
  if (found.empty()) VARVE_RETURN_IF_ERROR(status);
  return found;
}

Status RemoteLog::MissingState(uint64_t noted, uint64_t newest) const {
  const std::string rest =
      newest == 0 ? "all notes (records seen-...) and all blobs"
                  : "the notes of states after " + StateName(newest) + " (records seen-...)";
  return Status::Corruption(
      objects_->url() + ": record " + StateName(noted) + " is missing: record " + NoteName(noted) +
      " says that it was there. Bring it back, from a copy or from the versions that the object " +
      "store keeps. To go on without what it said, remove " + rest);
}

Status RemoteLog::MissingStates(const std::string& blob) const {
  return Status::Corruption(
      objects_->url() + ": all records " + std::string(kStatePrefix) +
      "... are missing, but blobs such as " + blob +
      " are there. Bring the records back, from a copy or from the versions that the object store "
      "keeps. If no push to " +
      "here has ever finished, or to go on without what was pushed, remove all blobs, or use " +
      "another URL");
}

Result<RemoteState> RemoteLog::ReadNewest() const {
  uint64_t noted = 0;  // a later look finds this state, or later ones
  std::string blob;    // that a look before has found
  for (int look = 0, misses = 0; look < kMaxLooks; ++look) {
    VARVE_ASSIGN_OR_RETURN(const Listed listed, List());
    const uint64_t newest = listed.states.empty() ? 0 : listed.states.back();
    if (!listed.notes.empty()) noted = std::max(noted, listed.notes.back());
    if (newest < noted) {  // a list need not find what is created or removed meanwhile
      if (++misses == kMaxMisses) return MissingState(noted, newest);
      std::this_thread::sleep_for(kPauseAfterMiss);
      continue;
    }
    if (newest == 0) {
      if (blob.empty()) {
        VARVE_ASSIGN_OR_RETURN(blob, FindBlob());
      }
      if (blob.empty()) return RemoteState();
      if (++misses == kMaxMisses) return MissingStates(blob);
      std::this_thread::sleep_for(kPauseAfterMiss);
      continue;  // perhaps this is the first push, which has created its record meanwhile
    }
    const std::string name = StateName(newest);
    VARVE_ASSIGN_OR_RETURN(const auto text, objects_->ReadRecord(name));
    if (!text.has_value()) continue;  // somebody has removed it since, so there are newer ones
    const std::string where = objects_->url() + ": record " + name;
    VARVE_ASSIGN_OR_RETURN(RemoteState state, DecodeRemoteState(*text, where));
    if (state.number == newest) return state;
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
  bool has_created = false;  // or perhaps
  // Whatever fails from then on, the state may be there.
  const auto failed = [&](const Status& status) {
    const bool is_told = status.code() == StatusCode::kAborted || !has_created;
    if (is_told) return status;
    return Status::Unavailable("outcome unknown, as the newest state may have been created: " +
                               status.message());
  };
  const auto shortest = std::chrono::steady_clock::now() + kShortestTry;
  const auto is_too_unknown = [&shortest](int unknowns) {
    return unknowns >= kMaxUnknown && std::chrono::steady_clock::now() >= shortest;
  };
  for (int conflicts = 0, unknowns = 0; conflicts < kMaxConflicts && !is_too_unknown(unknowns);) {
    RemoteState next;
    const bool is_known = known != nullptr;
    if (is_known) {
      next = *std::exchange(known, nullptr);
    } else {
      Result<RemoteState> newest = ReadNewest();
      if (!newest.ok()) return failed(newest.status());
      next = *std::move(newest);
    }
    const Result<bool> is_wanted = change(&next);
    if (!is_wanted.ok()) return failed(is_wanted.status());
    if (!*is_wanted && is_known) continue;
    if (!*is_wanted) {
      // What this call has created may be this state, or one before it.
      if (has_created) Note(next.number);
      return next;
    }
    ++next.number;
    const std::string text = EncodeRemoteState(next);
    if (text.size() > kMaxRecordBytes) {
      return failed(Status::FailedPrecondition(
          objects_->url() + " has " + std::to_string(next.snapshots.size()) +
          " snapshots, which is too many: remove old ones with varve reclaim -s URL --keep N"));
    }
    const auto outcome = objects_->CreateRecord(StateName(next.number), text);
    if (!outcome.ok() && outcome.status().code() != StatusCode::kUnavailable) {
      return failed(outcome.status());
    }
    if (outcome.ok() && *outcome == CreateOutcome::kOk) {
      has_created = true;
      const Result<bool> is_newest = IsNewest(next.number);
      if (!is_newest.ok()) return failed(is_newest.status());
      const bool counts = *is_newest;
      if (counts) Note(next.number);
      if (next.number % kStatesKept == 0) RemoveOld();
      if (counts) return next;
      continue;
    }
    if (outcome.ok() && *outcome == CreateOutcome::kExists) {
      ++conflicts;
      PauseBriefly();
      continue;
    }
    ++unknowns;
    PauseBriefly();
    has_created = true;
    unknown = outcome.ok() ? Status::Unavailable(objects_->url() + ": creation of record " +
                                                 StateName(next.number) + ": outcome unknown")
                           : outcome.status();
  }
  if (!unknown.ok()) return unknown;
  return Status::Unavailable(objects_->url() + ": others change it too fast; try again later");
}

// Notes that a state counts, which was the newest at some moment. Best effort: the note of a later
// state says more. Others may have removed this state and its note since.
void RemoteLog::Note(uint64_t number) const {
  objects_->CreateRecord(NoteName(number), "").status().IgnoreError();
}

// Best effort: what stays is removed later.
void RemoteLog::RemoveOld() const {
  const auto listed = List();
  if (!listed.ok()) return;
  const auto& [states, notes] = *listed;
  for (size_t i = 0; i + 1 < notes.size(); ++i) {
    objects_->RemoveRecord(NoteName(notes[i])).IgnoreError();
  }
  if (states.size() < 2 * kStatesKept) return;
  for (size_t i = 0; i < states.size() - kStatesKept; ++i) {
    // The first stays. Without it, who sees an empty list by mistake could create it again.
    if (states[i] != 1) objects_->RemoveRecord(StateName(states[i])).IgnoreError();
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
