// SPDX-License-Identifier: Apache-2.0
//
// The records of a group's log as plain structs, and their encoding (store/schema/group.fbs).
// What a record does is in group_state.cc. Plain values; all functions are stateless.
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

namespace varve {

struct GroupState;

inline constexpr uint32_t kVersionOfIndices = 2;
inline constexpr uint32_t kVersionOfSlots = 3;

using MemberId = uint64_t;
using AttemptId = uint64_t;  // from 1 upward, never used twice; 0 = none

// Who wrote a record: a rank of an epoch with its member, or, with epoch 0, a command.
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

// Of all ranks.
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

// A start of the job: closes every attempt of earlier ones.
struct EpochRecord {
  uint64_t epoch = 0;  // the one before it + 1
  uint64_t nonce = 0;
  uint32_t num_ranks = 0;
  uint32_t version = kGroupVersion;  // of the group from here on, unless it is higher
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
// The author's part of the attempt is durable. In groups of version 3 it is no record: the author's
// slot holds it (slot.h).
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
  // Kind 17, which groups of version 2 have: the catalogue is an index and holds what the log knew
  // of each part. Else kind 5: the log goes on to hold it.
  bool has_index = true;
  // Kind 19, which groups of version 3 have: the ranks' members of now hold the parts; the log
  // knows no more of them. It has an index.
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
// `step` becomes the newest of its run; the later ones move to `new_run`.
struct RewindRecord {
  NamedAttempt step;
  std::string new_run;
};
// The attempt stays in the members for the next `life` records, whatever is dropped.
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
// The state before this record. What lies below the newest of these has no meaning. Kind 16 in
// groups of version 1, 18 in those of version 2. In later ones it is 20 and names a file, in which
// 18 is: those who follow the log need not read that.
struct SnapshotRecord {
  std::shared_ptr<const GroupState> state;  // null: in the file
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

// The bytes of record `number` of the group with this seed.
std::string EncodeGroupRecord(uint64_t seed, uint64_t number, const GroupRecord& record);
// kCorruption says which part is wrong.
Result<GroupRecord> DecodeGroupRecord(uint64_t seed, uint64_t number, std::string_view bytes);

}  // namespace varve
