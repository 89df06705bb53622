// SPDX-License-Identifier: Apache-2.0
//
// One rank's side of a group's save, as the log sees it. It handles no tensor bytes:
// group_writer.cc stores them.
//
// A rank may be stopped between any two of its looks at the log and wake up after a new job has
// started without it. The new job uses the same numbers and saves the same steps that the old one
// meant to. So neither a number nor a step proves that something in the log is this rank's own. An
// attempt is its own if it has the rank's nonce, or was started while the rank was current. A part
// is its own if it is the one that the rank prepared.
//
// In groups of version 3 a rank says in its slot that it is prepared, and rank 0 gathers the slots.
// In a save that succeeds, only rank 0 appends to the log. In earlier versions each rank appended a
// record.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/group/group_log.h"
#include "store/group/slot.h"
#include "varve/options.h"

namespace varve::internal {

// Returns how an attempt ended that is not open any more. Ok: it was committed.
Status OutcomeOf(const GroupState& state, AttemptId attempt);

// Returns what rank 0 must append to start an attempt, and leaves its number in `*proposed`. It
// returns nothing when the attempt of that number has started, even if it was given up since.
// kAborted: the rank is not current any more, so nobody can tell whether that attempt is its own.
Result<std::optional<RecordBody>> ProposeBegin(const GroupState& state, const Author& author,
                                               const CheckpointId& id, const SaveOptions& options,
                                               uint64_t nonce, AttemptId* proposed);

// Proposes a change in the name of an author until the state shows it. `change` returns what to
// append, or nothing when all is as it should be. kAborted: the author is not current any more, and
// this call has appended nothing that could have made it so.
using GroupChange = std::function<Result<std::optional<RecordBody>>(const GroupState&)>;
Status ProposeAs(GroupLog* log, const Author& author, const GroupChange& change);

// Attempts in which a rank has taken part. Each save takes part in its own. Thread rule: any
// thread.
class AttemptsTaken {
 public:
  // The log tells how the last kMaxOutcomes attempts ended. An older one cannot be mistaken for a
  // new one.
  void Take(AttemptId attempt);
  bool Has(AttemptId attempt) const;

  // How many saves of the step have failed before the rank had found their attempts. Rank 0 gives
  // such an attempt up, and the next save of the step must not take that end for its own.
  void SetMissed(const CheckpointId& id, size_t num_missed);
  size_t NumMissed(const CheckpointId& id) const;

 private:
  mutable std::mutex mutex_;
  std::set<AttemptId> taken_;                                  // the newest of them
  std::map<std::pair<std::string, uint64_t>, size_t> missed_;  // by run and step. None is 0
};

// How long a rank waits for others, and for which.
struct RankPatience {
  std::chrono::milliseconds timeout{};
  // Returns the ranks from which nothing more comes. Unset: nobody knows. It is called on any
  // thread.
  std::function<std::vector<uint32_t>()> gone{};
  // After this time, standard error says for whom the rank waits.
  std::chrono::milliseconds says_so_after = std::chrono::seconds(10);
};

// Thread rule: one thread at a time. Ranks other than 0 call neither AwaitAllPrepared nor Commit.
class RankSave {
 public:
  // `log` and `taken` must outlive it.
  RankSave(GroupLog* log, const Author& author, RankPatience patience, AttemptsTaken* taken,
           CheckpointId id);
  const CheckpointId& id() const { return id_; }

  // Rank 0 starts an attempt, and the others find it. kAlreadyExists: the step exists. kAborted: a
  // later start of the job has happened, or rank 0 did not come. If another rank gave up, its error
  // is returned. Unless the save is over, this may be called again for the same attempt.
  Result<AttemptId> Begin(const SaveOptions& options);
  // True when the others may have heard of this rank's result. A second try of this rank would not
  // count.
  bool is_over() const { return is_over_; }
  // Says that this rank's part is durable. If another rank has given up the save, its error is
  // returned. kAborted: the save goes on with the part of another process.
  Status Prepare(const GroupPart& part);
  // Returns the parts of all ranks. kAborted names the ranks that did not come.
  Result<std::map<uint32_t, GroupPart>> AwaitAllPrepared();
  // Commits what AwaitAllPrepared returned. kAborted: another process has taken the place of a rank
  // since.
  Status Commit(CommitRecord record);
  // Ends the attempt unless it has ended. AwaitOutcome tells how it ended.
  Status GiveUp(const Status& why);
  // Ok: the attempt is committed with the part that this rank has prepared. An attempt that is not
  // decided in time is given up.
  Status AwaitOutcome();

 private:
  Result<AttemptId> BeginAttempt(const SaveOptions& options);
  Result<AttemptId> AwaitAttempt(const SaveOptions& options);
  Status PassOverMissed();
  void NoteMissed(const Result<AttemptId>& attempt, bool is_refused);
  // Returns the attempt, or the reason that there is none.
  using Look = std::function<std::optional<Result<AttemptId>>(const GroupState&)>;
  // Returns those of the given ranks that it waits for, rising.
  using Awaited =
      std::function<std::vector<uint32_t>(const GroupState&, const std::vector<uint32_t>&)>;
  // Waits until `look` returns something. kAborted names the ranks that did not come.
  Result<AttemptId> AwaitRanks(const std::string& what, const Awaited& awaited, const Look& look);
  GroupLog::Pace Pace() const;
  Status PrepareInSlot(const GroupPart& part);
  std::vector<uint32_t> Unprepared(const GroupState& state, const std::vector<uint32_t>& ranks);
  // Returns why an attempt that is not open any more is not this rank's. It never returns ok.
  Status WhyOver(const GroupState& state) const;
  Status Outcome(const GroupState& state) const;
  bool HasMyPart(const GroupAttempt& attempt) const;
  bool MustBeIn(const GroupState& state) const;
  Status NotIn() const;
  Status Dropped() const;
  std::string Waited() const;

  GroupLog* const log_;
  const Author author_;
  const RankPatience patience_;
  AttemptsTaken* const taken_;
  const CheckpointId id_;
  const uint64_t nonce_;   // of the attempt that rank 0 starts
  AttemptId attempt_ = 0;  // the proposed attempt. After Begin it has started
  bool has_begun_ = false;
  size_t num_missed_;               // attempts of earlier saves that may still end
  std::optional<AttemptId> first_;  // it and those after it certainly are of this save
  bool is_over_ = false;
  std::optional<GroupPart> part_;
  bool is_in_ = false;  // the log has shown the part in the attempt
  // Set once the attempt has started, in groups of version 3.
  SlotKey slot_key_;
  std::optional<SlotGatherer> slots_;
};

}  // namespace varve::internal
