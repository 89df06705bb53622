// SPDX-License-Identifier: Apache-2.0
//
// A group's log and the state that follows from it, kept together. Appending a record proves
// nothing. What counts is the state that the log gives with it. So a change is proposed until the
// state shows it, or shows that it is impossible. Thread rule: any thread may call it. One works at
// a time.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "store/group/group_state.h"
#include "store/group/record_log.h"
#include "varve/result.h"

namespace varve::internal {

class GroupLog {
 public:
  // `pause` is what a wait does between two looks. A test can pass one that takes no time.
  using PauseFunction = std::function<void(std::chrono::milliseconds)>;
  GroupLog(std::unique_ptr<RecordLog> log, uint64_t seed, PauseFunction pause = Sleep)
      : log_(std::move(log)), seed_(seed), pause_(std::move(pause)) {}

  // Reads the records that were appended. kCorruption names the record.
  Status Refresh();

  // Calls `look` with the state after the last Refresh or change.
  template <typename Look>
  auto With(const Look& look) const {
    const std::lock_guard lock(mutex_);
    return look(std::as_const(state_));
  }

  // Returns what to append to this state, or nothing when all is as it should be, or the error that
  // makes it impossible.
  using Proposal = std::function<Result<std::optional<GroupRecord>>(const GroupState&)>;
  // Appends what `propose` returns, on newer and newer states, until it returns nothing. The change
  // is durable when this returns ok.
  Status Propose(const Proposal& propose);

  // Pauses of a wait. The second has 2 ms, the third 3 ms, and so on, within these bounds.
  struct Pace {
    std::chrono::milliseconds first{1};
    std::chrono::milliseconds shortest{1};
    std::chrono::milliseconds longest{20};
  };

  // Looks for new records until `look` returns something. It returns nullopt after `timeout`, or
  // when Hurry has ended the wait. A look that finds nothing new costs one look at one file.
  template <typename T>
  Result<std::optional<T>> Await(std::chrono::milliseconds timeout,
                                 const std::function<std::optional<T>(const GroupState&)>& look,
                                 const Pace& pace = kUsualPace);
  static const Pace kUsualPace;

  // Ends all waits, also those under way, after this time.
  void Hurry(std::chrono::milliseconds left) {
    last_ = (std::chrono::steady_clock::now() + left).time_since_epoch();
  }
  bool is_hurried() const { return last_.load() != std::chrono::steady_clock::duration::max(); }

  // For slots, and for code that looks at single files.
  RecordLog* records() const { return log_.get(); }
  uint64_t seed() const { return seed_; }

  // Takes a snapshot if enough records have come since the newest one. Propose does so by itself,
  // but not after a COMMIT, for which all ranks wait.
  Status TakeSnapshotIfDue();
  bool IsSnapshotDue() const;

  // Removes what interrupted appends have left.
  Status RemoveDebris() { return log_->RemoveDebris(); }

  // The number of records between two snapshots. It is the first number. In a group with large
  // snapshots it is more, up to the second.
  static constexpr uint64_t kSnapshotInterval = 256;
  static constexpr uint64_t kMaxSnapshotInterval = 1024;

 private:
  static void Sleep(std::chrono::milliseconds time);
  void Pause(int* num_pauses, const Pace& pace) const;
  void PauseAfterLosses(int losses) const;
  Result<bool> Poll();
  Status RefreshLocked();
  Status ReadOn(size_t most, bool looks_back);
  Status Reload();
  Result<bool> TryReload();
  Result<uint64_t> NotedNewest() const;
  Status NoteNewest();
  Status ApplyBytes(uint64_t number, const std::string& bytes);
  Result<bool> IsBehind() const;
  Status Append(const GroupRecord& record);
  bool IsSnapshotDueLocked() const;
  Status TakeSnapshotIfDueLocked();
  Result<SnapshotRecord> PutSnapshot() const;
  Result<std::shared_ptr<const GroupState>> ReadSnapshot(uint64_t number,
                                                         const SnapshotRecord& record);
  Status RemoveBelow(uint64_t number);

  std::atomic<std::chrono::steady_clock::duration> last_ =
      std::chrono::steady_clock::duration::max();
  mutable std::mutex mutex_;
  const std::unique_ptr<RecordLog> log_;
  const uint64_t seed_;
  const PauseFunction pause_;
  GroupState state_;
  std::string stamp_;                                  // of the last record in `state_` ...
  std::chrono::steady_clock::time_point looked_back_;  // ... and when it was last compared
  std::string missing_;                                // what the last reload did not find
};

template <typename T>
Result<std::optional<T>> GroupLog::Await(
    std::chrono::milliseconds timeout,
    const std::function<std::optional<T>(const GroupState&)>& look, const Pace& pace) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int num_pauses = 0;;) {
    const auto now = std::chrono::steady_clock::now();
    const bool late = now >= deadline || now.time_since_epoch() >= last_.load();
    bool has_read = false;
    if (late) {
      VARVE_RETURN_IF_ERROR(Refresh());
    } else {
      VARVE_ASSIGN_OR_RETURN(has_read, Poll());
    }
    std::optional<T> found = With(look);
    if (found.has_value() || late) return found;
    if (!has_read) Pause(&num_pauses, pace);
  }
}

}  // namespace varve::internal
