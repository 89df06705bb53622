// SPDX-License-Identifier: Apache-2.0
//
// The state of a group, which follows from its log. Every process that has read the same records
// has the same state. So this is the only place that decides what a record does. A record has no
// effect if it comes too late, from a rank of an earlier epoch, or about an attempt whose outcome
// is known. The state is a plain value and deterministic, and trusts nothing that a record says.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/group/group_record.h"

namespace varve::internal {

struct GroupMember {
  std::string host;
  uint64_t epoch = 0;  // epoch of the rank that had it last
  uint32_t rank = 0;
  bool operator==(const GroupMember&) const = default;
};

// The members of all ranks, by rank. Attempts that the same members saved share it.
struct GroupCrew {
  std::shared_ptr<const std::vector<MemberId>> members;
  bool operator==(const GroupCrew& other) const {
    return members == other.members ||
           (members != nullptr && other.members != nullptr && *members == *other.members);
  }
};

// An attempt that is open, or committed and still named by a step or a pin. All others are closed,
// and what members hold of them has no meaning.
struct GroupAttempt {
  bool committed = false;
  uint64_t nonce = 0;
  CheckpointId id;  // the checkpoint that it was started for
  AttemptId base = 0;
  OnExisting on_existing = OnExisting::kError;
  // The parts by rank. Once the attempt is committed with an index, the index has the parts, and
  // the next two fields are set instead.
  std::map<uint32_t, GroupPart> parts;
  GroupCrew crew;
  GroupTotals crew_totals;
  Digest catalogue;  // set once committed, as is the next
  int64_t created_us = 0;
  uint64_t names = 0;  // steps and pins
  bool operator==(const GroupAttempt&) const = default;

  bool has_index() const { return crew.members != nullptr; }
  GroupTotals Totals() const;
  // Returns the members that hold the parts, by rank.
  std::vector<MemberId> Members() const;
};

struct GroupStep {
  AttemptId attempt = 0;
  std::optional<CheckpointId> parent;
  std::map<std::string, double> metrics;
  bool operator==(const GroupStep&) const = default;
};

struct GroupRun {
  std::optional<CheckpointId> forked_from;
  std::map<uint64_t, GroupStep> steps;
  std::map<std::string, uint64_t> tags;
  bool operator==(const GroupRun&) const = default;
};

// How a recent attempt ended. Ok = committed.
struct GroupOutcome {
  CheckpointId id;
  StatusCode code = StatusCode::kOk;
  std::string message;
  bool operator==(const GroupOutcome&) const = default;
};

struct GroupPin {
  AttemptId attempt = 0;
  uint64_t last = 0;  // the last position at which it holds
  bool operator==(const GroupPin&) const = default;
};

// Values that follow from the rest of a state. They are kept so that no record of a save, and no
// wait, goes through all attempts or all ranks.
struct GroupDerived {
  std::set<AttemptId> open;
  GroupCrew
      crew;  // crew of all ranks. Null until a commit asks for it, and again when the ranks change
  Digest crew_digest;
  bool operator==(const GroupDerived&) const { return true; }
};

struct GroupState {
  uint32_t version = 1;          // version of what is written
  uint64_t next = 1;             // the record that comes next
  uint64_t snapshot = 0;         // the newest snapshot ...
  uint64_t snapshot_before = 0;  // ... and the one before it
  uint64_t epoch = 0;
  uint64_t epoch_nonce = 0;
  uint32_t num_ranks = 0;
  AttemptId next_attempt = 1;
  uint64_t num_closed = 0;  // attempts closed and members removed so far
  std::map<MemberId, GroupMember> members;
  std::map<uint32_t, MemberId> ranks;  // of this epoch
  std::map<AttemptId, GroupAttempt> attempts;
  std::map<std::string, GroupRun> runs;
  std::map<AttemptId, GroupOutcome> outcomes;  // of the last kMaxOutcomes
  std::map<uint64_t, GroupPin> pins;
  GroupDerived derived;
  bool operator==(const GroupState&) const = default;

  static constexpr size_t kMaxOutcomes = 64;

  // Applies record `next`.
  void Apply(const GroupRecord& record);

  const GroupAttempt* FindAttempt(AttemptId attempt) const;
  const GroupStep* FindStep(const CheckpointId& id) const;
  // True when this is still the step that was meant.
  bool Names(const NamedAttempt& step) const;
  std::optional<CheckpointId> NameOf(AttemptId attempt) const;
  // True when an author's records count. The author is the newest instance of its rank in the
  // current epoch, or a command.
  bool IsCurrent(const Author& author) const;
  // Returns members by rank. It is empty unless each rank of the epoch has one.
  std::vector<MemberId> MembersOfRanks() const;
  // True when an attempt holds part of its data in `member`.
  bool IsInUse(MemberId member) const;
  // Returns RUN~1, or the first of RUN~2, RUN~3, ... that is not a run yet.
  std::string FreeForkName(std::string_view run) const;

 private:
  bool MayApply(const GroupRecord& record) const;
  void Do(const Author& author, const EpochRecord& r);
  void Do(const Author& author, const OwnRecord& r);
  void Do(const Author& author, const BeginRecord& r);
  void Do(const Author& author, const PreparedRecord& r);
  void Do(const Author& author, const CommitRecord& r);
  void Do(const Author& author, const AbortRecord& r);
  void Do(const Author& author, const DropRecord& r);
  void Do(const Author& author, const TagRecord& r);
  void Do(const Author& author, const UntagRecord& r);
  void Do(const Author& author, const MetricsRecord& r);
  void Do(const Author& author, const ForkRecord& r);
  void Do(const Author& author, const RewindRecord& r);
  void Do(const Author& author, const PinRecord& r);
  void Do(const Author& author, const UnpinRecord& r);
  void Do(const Author& author, const RemoveMemberRecord& r);
  void Do(const Author& author, const SnapshotRecord& r);

  void SetOutcome(AttemptId attempt, const CheckpointId& id, StatusCode code, std::string message);
  void Abort(AttemptId attempt, StatusCode code, const std::string& message);
  bool MakeRoom(const GroupAttempt& attempt);
  bool IsCrew(const Digest& digest);
  void GivePartsToIndex(GroupAttempt* attempt) const;
  void SetCrew(GroupCrew crew, GroupAttempt* attempt) const;
  void MoveSteps(const std::string& run, uint64_t first, const std::string& to);
  void TidyRun(const std::string& name, const std::set<uint64_t>& removed);
  void ReleaseName(AttemptId attempt);
  void ExpirePins();
};

std::string MemberName(MemberId member);  // 16 hexadecimal digits

}  // namespace varve::internal
