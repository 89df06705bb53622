// SPDX-License-Identifier: Apache-2.0
//
// The records of a group's log as plain structs, and their encoding (store/schema/group.fbs).
// group_state.cc says what a record does. Plain values. All functions are stateless.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "store/format/group_file.h"
#include "varve/checkpoint.h"
#include "varve/options.h"
#include "varve/result.h"

namespace varve::internal {

struct GroupState;

inline constexpr uint32_t kVersionOfIndices = 2;
inline constexpr uint32_t kVersionOfSlots = 3;

using MemberId = uint64_t;
using AttemptId = uint64_t;  // from 1 upward, never used twice. 0 = none

// Who wrote a record. It is a rank of an epoch with its member, or, with epoch 0, a command.
struct Author {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  MemberId member = 0;
  bool operator==(const Author&) const = default;
};

// What one rank has saved of an attempt.
struct GroupPart {
  MemberId member = 0;
  Digest root;  // of the member's step
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;
  uint64_t new_bytes = 0;
  uint64_t stored_bytes = 0;
  Digest catalogue;  // of the file that lists them
  bool operator==(const GroupPart&) const = default;
};

// Totals over all ranks.
struct GroupTotals {
  uint64_t num_tensors = 0;
  uint64_t logical_bytes = 0;
  uint64_t new_bytes = 0;
  uint64_t stored_bytes = 0;
  bool operator==(const GroupTotals&) const = default;

  void Add(const GroupPart& part);
};

// The parts that rank 0 has gathered for a commit.
struct GatheredParts {
  Digest members;  // by rank
  GroupTotals totals;
};
Digest DigestOfMembers(const std::vector<MemberId>& members);

struct NamedAttempt {
  CheckpointId id;
  AttemptId attempt = 0;
  bool operator==(const NamedAttempt&) const = default;
};

// A start of the job. It closes every attempt of earlier epochs.
struct EpochRecord {
  uint64_t epoch = 0;  // the one before it + 1
  uint64_t nonce = 0;
  uint32_t num_ranks = 0;
  uint32_t version =
      kGroupVersion;  // version of the group from here on, unless the group's is higher
};
// The author's member belongs to its rank from now on.
struct OwnRecord {
  std::string host;
};
struct BeginRecord {
  AttemptId attempt = 0;  // the next one
  uint64_t nonce = 0;
  CheckpointId id;
  AttemptId base = 0;
  OnExisting on_existing = OnExisting::kError;
};
// The author's part of the attempt is durable. Groups of version 3 have no such record, because the
// author's slot holds the part (slot.h).
struct PreparedRecord {
  AttemptId attempt = 0;
  GroupPart part;
};
struct CommitRecord {
  AttemptId attempt = 0;
  Digest catalogue;
  int64_t created_us = 0;
  std::map<std::string, double> metrics;
  std::vector<std::string> tags;
  // With an index, the record has kind 17, which groups from version 2 on have. The catalogue is
  // then an index and holds what the log knew of each part. Without, it has kind 5, and the log
  // goes on to hold the parts.
  bool has_index = true;
  // With this, the record has kind 19, which groups of version 3 have. The current members of the
  // ranks then hold the parts, and the log knows no more about them. The catalogue has an index.
  std::optional<GatheredParts> gathered{};
};
struct AbortRecord {
  AttemptId attempt = 0;
  StatusCode code = StatusCode::kAborted;
  std::string message;
};
struct DropRecord {
  std::vector<NamedAttempt> steps;
};
struct TagRecord {
  NamedAttempt step;
  std::string tag;
};
struct UntagRecord {
  std::string run;
  std::string tag;
};
struct MetricsRecord {
  NamedAttempt step;
  std::map<std::string, double> metrics;
};
struct ForkRecord {
  NamedAttempt step;
  std::string new_run;
};
// `step` becomes the newest of its run. The later ones move to `new_run`.
struct RewindRecord {
  NamedAttempt step;
  std::string new_run;
};
// The attempt stays in the members for the next `life` records, even if it is dropped.
struct PinRecord {
  uint64_t pin = 0;  // random
  AttemptId attempt = 0;
  uint64_t life = 0;
};
struct UnpinRecord {
  uint64_t pin = 0;
};
struct RemoveMemberRecord {
  MemberId member = 0;
};
// The state before this record. Records below the newest of these have no meaning. It has kind 16
// in groups of version 1, and kind 18 in version 2. In later versions it has kind 20 and names a
// file that has kind 18. A process that follows the log need not read that file.
struct SnapshotRecord {
  std::shared_ptr<const GroupState> state;  // null = it is in the file
  Digest file{};
};

using RecordBody =
    std::variant<EpochRecord, OwnRecord, BeginRecord, PreparedRecord, CommitRecord, AbortRecord,
                 DropRecord, TagRecord, UntagRecord, MetricsRecord, ForkRecord, RewindRecord,
                 PinRecord, UnpinRecord, RemoveMemberRecord, SnapshotRecord>;

struct GroupRecord {
  Author author;
  RecordBody body;
};

// Returns the bytes of record `number` of the group with this seed.
std::string EncodeGroupRecord(uint64_t seed, uint64_t number, const GroupRecord& record);
// kCorruption says which part is wrong.
Result<GroupRecord> DecodeGroupRecord(uint64_t seed, uint64_t number, std::string_view bytes);

}  // namespace varve::internal
