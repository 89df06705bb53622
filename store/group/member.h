// SPDX-License-Identifier: Apache-2.0
//
// The member stores of a group. They are plain stores in ROOT/members, in which the number of a
// step is that of an attempt. This file gives a rank its member. It also removes closed attempts,
// and members without attempts, from the disk.
//
// A sweep is safe because of its order: it first looks what a member holds, then reads the log. An
// attempt that was seen in the member has started before that read. So if the log then says that it
// is closed, it is closed.
#pragma once

#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/db/store_impl.h"
#include "store/format/group_file.h"
#include "store/group/group_log.h"
#include "varve/group.h"

namespace varve::internal {

// The run in which a member keeps its attempts.
inline constexpr std::string_view kMemberRun = "main";

// The place that all functions here work on.
struct GroupPlace {
  std::filesystem::path root;
  GroupFile file;
  GroupLog* log = nullptr;
};

std::filesystem::path MemberFolder(const std::filesystem::path& root, MemberId member);

// True when a process has it open for writing.
bool IsMemberLocked(const std::filesystem::path& root, MemberId member);
// An error about a member that could not be opened because there is no store in its folder.
// kCorruption names what is lost: parts of steps are in it. Ok: nothing of it is needed, because it
// is not made yet, or was removed. Call it with the log read after the member was looked at.
Status RequireNotLost(const GroupPlace& place, MemberId member);
// Opens a member. It must have the seed of its group. One that is a link is not opened for writing.
Result<std::unique_ptr<StoreImpl>> OpenMember(const GroupPlace& place, MemberId member,
                                              const StoreOptions& options, bool for_writing);

// A rank's member. It is one that this rank, or a rank of an earlier job, has had on this host, or
// a new one. No other process writes to it while it is open. Attempts that were undecided there are
// aborted, or found committed.
struct OwnMember {
  Author author;
  std::unique_ptr<StoreImpl> store;
  bool is_swept = true;  // everything closed is dropped. Otherwise there is more to drop
  std::vector<std::string> warnings;  // of the drops
};
Result<OwnMember> AdoptMember(const GroupPlace& place, const JoinOptions& options);

// Returns the attempts that a member holds.
Result<std::set<AttemptId>> HeldAttempts(const StoreImpl& member);

// Drops up to `at_most` closed attempts from a member that is open for writing. Attempts that one
// of its own saves is based on stay until the next time. A Reclaim frees their space.
inline constexpr uint64_t kDropsARound = 16;  // so that neither a join nor a save waits for more
struct Swept {
  uint64_t dropped = 0;
  bool is_all = true;
  std::vector<std::string> warnings;  // of the drops, as in DropReport. Each names the member
};
Result<Swept> SweepMember(const GroupPlace& place, StoreImpl* member,
                          uint64_t at_most = std::numeric_limits<uint64_t>::max());

// Removes a member of an earlier epoch that no attempt needs, unless it is locked. `store` is the
// member, open for writing. It is null when the member's folder has no store.
Status RemoveMemberIfUnused(const GroupPlace& place, MemberId member,
                            std::unique_ptr<StoreImpl> store);

// Removes folders that once were members, and files of closed attempts in the other folders.
Status RemoveDebris(const GroupPlace& place);
Status SweepCatalogues(const GroupPlace& place);

}  // namespace varve::internal
