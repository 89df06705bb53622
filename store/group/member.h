// SPDX-License-Identifier: Apache-2.0
//
// The member stores of a group: plain stores in ROOT/members, in which the number of a step is that
// of an attempt. Here a rank gets its own, and closed attempts and members without any leave the
// disk.
//
// The order that makes a sweep safe: first look what a member holds, then read the log. An attempt
// that was seen in the member has begun before, so if the log says afterwards that it is closed, it
// is.
#pragma once

#include <filesystem>
#include <limits>
#include <memory>
#include <set>

#include "store/db/store_impl.h"
#include "store/format/group_file.h"
#include "store/group/group_log.h"
#include "varve/group.h"

namespace varve {

// The run in which a member keeps its attempts.
inline constexpr std::string_view kMemberRun = "main";

// What all functions here work on.
struct GroupPlace {
  std::filesystem::path root;
  GroupFile file;
  GroupLog* log = nullptr;
};

std::filesystem::path MemberFolder(const std::filesystem::path& root, MemberId member);

// Whether some process has it open for writing.
bool IsMemberLocked(const std::filesystem::path& root, MemberId member);
// Opens a member, which must have the seed of its group.
Result<std::unique_ptr<StoreImpl>> OpenMember(const GroupPlace& place, MemberId member,
                                              const StoreOptions& options, bool for_writing);

// A rank's member: one that it or a rank that is no more has had on this host, or a new one. No
// other process writes to it while it is open. What was undecided there is aborted, or found
// committed.
struct OwnMember {
  Author author;
  std::unique_ptr<StoreImpl> store;
  bool is_swept = true;  // of all that is closed; else there is more to drop
};
Result<OwnMember> AdoptMember(const GroupPlace& place, const JoinOptions& options);

// The attempts that a member holds.
Result<std::set<AttemptId>> HeldAttempts(const StoreImpl& member);

// Drops the closed attempts from a member that is open for writing, `at_most` so many; those that a
// save of its own is based on stay for the next time. Their space is for a Reclaim.
inline constexpr uint64_t kDropsARound = 16;  // so that neither a join nor a save waits for more
struct Swept {
  uint64_t dropped = 0;
  bool is_all = true;
};
Result<Swept> SweepMember(const GroupPlace& place, StoreImpl* member,
                          uint64_t at_most = std::numeric_limits<uint64_t>::max());

// Removes a member of an earlier epoch that no attempt needs, unless it is locked. `store`: the
// member, open for writing, or null when there is none in its folder.
Status RemoveMemberIfUnused(const GroupPlace& place, MemberId member,
                            std::unique_ptr<StoreImpl> store);

// Removes folders that were members once, and files of closed attempts in the other folders.
Status RemoveDebris(const GroupPlace& place);
Status SweepCatalogues(const GroupPlace& place);

}  // namespace varve
