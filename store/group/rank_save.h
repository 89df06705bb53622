// SPDX-License-Identifier: Apache-2.0
//
// A save of a group, as one rank speaks of it in the log. It knows of no bytes: what is prepared is
// stored by others (group_writer.cc).
//
// A rank may be stopped between any two of its looks at the log and wake up in a job that has begun
// without it. The new job gives out numbers and saves steps that the old one meant to. So nothing
// in the log is this rank's own because its number or its step is: an attempt is when it has the
// rank's nonce, or was begun while the rank was current, and a part is when it is the one that was
// prepared.
//
// In groups of version 3 a rank says in its slot that it is prepared, and rank 0 gathers the slots:
// nobody but rank 0 appends to the log in a save that goes well. Before, it was a record of each.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/group/group_log.h"
#include "store/group/slot.h"
#include "varve/options.h"

namespace varve {

// What became of an attempt that is open no more; ok: it was committed.
Status OutcomeOf(const GroupState& state, AttemptId attempt);

// What rank 0 appends to begin an attempt, whose number it leaves in `*proposed`. Nothing: its
// attempt of that number has begun, and may have been given up since. kAborted: the rank is current
// no more, so it cannot be told whether that attempt is its own.
Result<std::optional<RecordBody>> ProposeBegin(const GroupState& state, const Author& author,
                                               const CheckpointId& id, const SaveOptions& options,
                                               uint64_t nonce, AttemptId* proposed);

// Proposes a change in the name of an author until the state shows it. `change` says what to
// append, or nothing because all is as it should be. kAborted when the author is current no more
// and has appended nothing in this call that could have made it so.
using GroupChange = std::function<Result<std::optional<RecordBody>>(const GroupState&)>;
Status ProposeAs(GroupLog* log, const Author& author, const GroupChange& change);

// Attempts that are over for a rank: each save takes part in one of its own. Thread rule: any.
class AttemptsTaken {
 public:
  // The log tells how the last kMaxOutcomes attempts ended; no older one can be taken for a new
  // one.
  void Take(AttemptId attempt);
  bool Has(AttemptId attempt) const;

 private:
  mutable std::mutex mutex_;
  std::set<AttemptId> taken_;  // the newest of them
};

// How a rank waits for others.
struct RankPatience {
  std::chrono::milliseconds timeout{};
  // Those of which nothing more comes; unset: nobody knows. Any thread.
  std::function<std::vector<uint32_t>()> gone{};
  // After so long it says on standard error whom it waits for.
  std::chrono::milliseconds says_so_after = std::chrono::seconds(10);
};

// Thread rule: one thread at a time. Ranks other than 0 call neither AwaitAllPrepared nor Commit.
class RankSave {
 public:
  // `log` and `taken` must outlive it.
  RankSave(GroupLog* log, const Author& author, RankPatience patience, AttemptsTaken* taken,
           CheckpointId id);
  const CheckpointId& id() const { return id_; }

  // Rank 0 begins an attempt; the others find it. kAlreadyExists: the step is there. kAborted: a
  // later start of the job has begun, or rank 0 did not come; or the error of whoever gave up.
  // Unless that is over, it may be called again, for the same attempt.
  Result<AttemptId> Begin(const SaveOptions& options);
  // The others may have heard of how it goes: nothing that this rank could do again would count.
  bool is_over() const { return is_over_; }
  // Says that this rank's part is durable. The error of whoever gave up the save; kAborted when it
  // goes on with the part of another process.
  Status Prepare(const GroupPart& part);
  // The parts of all ranks. kAborted names those that did not come.
  Result<std::map<uint32_t, GroupPart>> AwaitAllPrepared();
  // Of what AwaitAllPrepared gave. kAborted: another process goes on as one of the ranks since.
  Status Commit(CommitRecord record);
  // Ends the attempt unless it has ended. AwaitOutcome says how.
  Status GiveUp(const Status& why);
  // Ok: the attempt is committed, with the part that this rank has prepared. An attempt that is not
  // decided in time is given up.
  Status AwaitOutcome();

 private:
  Result<AttemptId> BeginAttempt(const SaveOptions& options);
  Result<AttemptId> AwaitAttempt(const SaveOptions& options);
  // The attempt, or why there is none.
  using Look = std::function<std::optional<Result<AttemptId>>(const GroupState&)>;
  // Of some ranks, rising, those that it waits for.
  using Awaited =
      std::function<std::vector<uint32_t>(const GroupState&, const std::vector<uint32_t>&)>;
  // Until `look` gives something. kAborted names those whom it waits for in vain.
  Result<AttemptId> AwaitRanks(const std::string& what, const Awaited& awaited, const Look& look);
  GroupLog::Pace Pace() const;
  Status PrepareInSlot(const GroupPart& part);
  std::vector<uint32_t> Unprepared(const GroupState& state, const std::vector<uint32_t>& ranks);
  // Why an attempt that is open no more is not this rank's; never ok.
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
  const uint64_t nonce_;   // of the attempt that rank 0 begins
  AttemptId attempt_ = 0;  // proposed, and once Begin has returned it, begun
  bool has_begun_ = false;
  bool is_over_ = false;
  std::optional<GroupPart> part_;
  bool is_in_ = false;  // the log has shown the part in the attempt
  // Once it has begun, in groups of version 3.
  SlotKey slot_key_;
  std::optional<SlotGatherer> slots_;
};

}  // namespace varve
