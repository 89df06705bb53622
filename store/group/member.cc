// SPDX-License-Identifier: Apache-2.0
#include "store/group/member.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <system_error>
#include <thread>
#include <vector>

#include "base/create_once.h"
#include "base/file_descriptor.h"
#include "base/random_number.h"
#include "base/util.h"
#include "store/db/database_lock.h"
#include "store/format/format_file.h"
#include "store/group/catalogue.h"
#include "store/group/mutation.h"
#include "store/group/rank_save.h"
#include "store/group/slot.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;
using std::chrono_literals::operator""ms;

// How long a rank waits for the member that suits it best.
constexpr auto kPatience = 1000ms;
// Only a process that sweeps can lock a new one.
constexpr auto kPatienceForNew = 30000ms;

std::string ThisHost() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

MemberId NewMemberId() {
  MemberId id = 0;
  while (id == 0) id = RandomNumber();
  return id;
}

// Returns members on this host that the rank may try, the best first. The first is the one that the
// rank had last, because its steps are most like what it will save. Then come members of ranks that
// this epoch does not have, and members that a rank left for another one.
std::vector<MemberId> FindCandidates(const GroupState& state, const JoinOptions& options,
                                     const std::string& host) {
  std::map<uint32_t, std::pair<uint64_t, MemberId>> newest;  // by rank
  for (const auto& [id, member] : state.members) {
    newest[member.rank] = std::max(newest[member.rank], {member.epoch, id});
  }
  if (const auto it = state.ranks.find(options.rank); it != state.ranks.end()) {
    newest[options.rank].second = it->second;
  }
  std::vector<MemberId> candidates;
  for (const auto& [id, member] : state.members) {
    if (member.host != host) continue;
    const bool is_newest = newest[member.rank].second == id;
    if (is_newest && member.rank == options.rank) {
      candidates.insert(candidates.begin(), id);
    } else if (!is_newest || member.rank >= state.num_ranks) {
      candidates.push_back(id);
    }
  }
  return candidates;
}

Status CheckEpoch(const GroupState& state, const Author& author) {
  if (state.epoch == author.epoch) return Status::Ok();
  return Status::Aborted("epoch " + std::to_string(state.epoch) +
                         " of the job has begun; this rank belongs to epoch " +
                         std::to_string(author.epoch));
}

// Records that the author has its member. kNotFound: the member was removed meanwhile. `is_new`: no
// record names it yet.
Status Own(const GroupPlace& place, const Author& author, const std::string& host, bool is_new) {
  return place.log->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
    VARVE_RETURN_IF_ERROR(CheckEpoch(state, author));
    if (author.rank >= state.num_ranks) {
      return Status::InvalidArgument("rank is " + std::to_string(author.rank) +
                                     ", expected less than " + std::to_string(state.num_ranks));
    }
    if (state.IsCurrent(author)) return std::optional<GroupRecord>();
    if (!is_new && !state.members.contains(author.member)) {
      return Status::NotFound("member " + MemberName(author.member) + " was removed");
    }
    return std::optional(GroupRecord{author, OwnRecord{host}});
  });
}

// A missing member that should exist is never made anew, because what is left of it may still be of
// use.
Result<std::unique_ptr<StoreImpl>> OpenOrCreateMember(const GroupPlace& place, MemberId member,
                                                      const StoreOptions& options) {
  auto opened = OpenMember(place, member, options, /*for_writing=*/true);
  if (opened.ok() || opened.status().code() != StatusCode::kNotFound) return opened;
  const bool in_use =
      place.log->With([&](const GroupState& state) { return state.IsInUse(member); });
  if (in_use) return opened;
  const CreateOptions create{.digest_seed = place.file.digest_seed, .store = options};
  return StoreImpl::CreatePath(MemberFolder(place.root, member), create);
}

// Another process may be sweeping a locked member, which does not take long.
Result<std::unique_ptr<StoreImpl>> OpenPatiently(const GroupPlace& place, MemberId member,
                                                 const StoreOptions& options,
                                                 std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    auto opened = OpenOrCreateMember(place, member, options);
    const bool locked = opened.status().code() == StatusCode::kLocked;
    if (!locked || std::chrono::steady_clock::now() >= deadline) return opened;
    std::this_thread::sleep_for(10ms);
  }
}

// Aborts undecided attempts that the author's member holds. Rank 0 aborts all open attempts,
// because only it could commit them. What the state says afterwards counts, because an attempt may
// have been committed first.
Status AbortUndecided(const GroupPlace& place, const Author& author, StoreImpl* member) {
  VARVE_ASSIGN_OR_RETURN(const std::set<AttemptId> held, HeldAttempts(*member));
  std::vector<CheckpointId> undecided;  // for the mistake below only
  // A process that slept through a later start finds attempts of that start, which it cannot end.
  VARVE_RETURN_IF_ERROR(ProposeAs(
      place.log, author, [&](const GroupState& state) -> Result<std::optional<RecordBody>> {
        for (const auto& [number, attempt] : state.attempts) {
          if (attempt.committed || (author.rank != 0 && !held.contains(number))) continue;
          if (held.contains(number)) undecided.push_back({std::string(kMemberRun), number});
          PassMutationPoint(MutationPoint::kAborting);
          return std::optional<RecordBody>(
              AbortRecord{number, StatusCode::kAborted,
                          "rank " + std::to_string(author.rank) + " was restarted"});
        }
        return std::optional<RecordBody>();
      }));
  // This is the mistake that a test makes on purpose.
  if (IsMutated(Mutation::kSweepWithoutLook) && !undecided.empty()) {
    return member->Drop(undecided, {.reclaim = false}).status();
  }
  return Status::Ok();
}

// Others may remove it at the same time. A process that opens the folder meanwhile leaves files in
// it and finds that it is no member. These files are debris, which a later sweep removes.
Status RemoveFolder(const fs::path& path) {
  std::error_code error;
  do {
    fs::remove_all(path, error);
  } while (error == std::errc::no_such_file_or_directory);
  if (!error || error == std::errc::directory_not_empty) return Status::Ok();
  return Status::IOError("cannot remove " + path.string() + ": " + error.message());
}

// Returns nullopt when it is not the name of a member.
std::optional<MemberId> ParseMember(const std::string& name) {
  MemberId id = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, id, 16);
  if (error != std::errc() || stop != end || name != MemberName(id)) return std::nullopt;
  return id;
}

bool IsMember(const GroupPlace& place, std::optional<MemberId> id) {
  return id.has_value() &&
         place.log->With([&](const GroupState& state) { return state.members.contains(*id); });
}

Result<std::vector<fs::path>> ListFolder(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    paths.push_back(it->path());
  }
  if (!error) return paths;
  return Status::IOError("cannot list " + folder.string() + ": " + error.message());
}

// A link is not followed, because asking for a lock makes a file.
bool IsLocked(const fs::path& folder) {
  return CheckIsNoLink(folder).ok() &&
         DatabaseLock::Take(folder).status().code() == StatusCode::kLocked;
}

}  // namespace

fs::path MemberFolder(const fs::path& root, MemberId member) {
  return MembersFolder(root) / MemberName(member);
}

bool IsMemberLocked(const fs::path& root, MemberId member) {
  // Asking for the lock leaves a file, which would be in the way of a process that makes the store.
  const fs::path folder = MemberFolder(root, member);
  std::error_code error;
  return fs::exists(folder / kFormatFileName, error) && IsLocked(folder);
}

// The log names a member before its folder is made, so a member that is not there need not be lost.
// One that holds a part of an attempt was there.
Status RequireNotLost(const GroupPlace& place, MemberId member) {
  if (!place.log->With([&](const GroupState& state) { return state.IsInUse(member); })) {
    return Status::Ok();
  }
  const fs::path folder = MemberFolder(place.root, member);
  std::error_code error;
  const bool there = fs::exists(folder, error);
  return Status::Corruption("member " + MemberName(member) +
                            " is lost: " + (there ? (folder / kFormatFileName) : folder).string() +
                            " is missing, and parts of steps are in that member");
}

Result<std::unique_ptr<StoreImpl>> OpenMember(const GroupPlace& place, MemberId member,
                                              const StoreOptions& options, bool for_writing) {
  const fs::path folder = MemberFolder(place.root, member);
  if (for_writing) VARVE_RETURN_IF_ERROR(CheckIsNoLink(folder));
  auto opened = StoreImpl::OpenPath(folder, options, for_writing);
  // The log says whether a member may be without its FORMAT file (RequireNotLost).
  if (std::error_code error; opened.status().code() == StatusCode::kCorruption &&
                             !fs::exists(folder / kFormatFileName, error)) {
    return Status::NotFound(opened.status().message());
  }
  // RocksDB reads some files before it has the lock. These may change meanwhile, or disappear with
  // the member.
  const auto may_pass = [](const Status& status) {
    return status.code() == StatusCode::kIOError || status.code() == StatusCode::kCorruption;
  };
  for (int i = 0; for_writing && may_pass(opened.status()) && i < 20; ++i) {
    std::this_thread::sleep_for(10ms);
    opened = StoreImpl::OpenPath(folder, options, for_writing);
  }
  if (!opened.ok()) return opened.status();
  std::unique_ptr<StoreImpl> store = *std::move(opened);
  if (store->digest_seed() == place.file.digest_seed) return store;
  return Status::Corruption(folder.string() + " has another digest seed than its group");
}

Result<std::set<AttemptId>> HeldAttempts(const StoreImpl& member) {
  std::set<AttemptId> held;
  const auto steps = member.ListCheckpoints(kMemberRun);
  if (steps.status().code() == StatusCode::kNotFound) return held;  // nothing was ever saved
  if (!steps.ok()) return steps.status();
  for (const CheckpointInfo& info : *steps) held.insert(info.id.step);
  return held;
}

Result<OwnMember> AdoptMember(const GroupPlace& place, const JoinOptions& options) {
  const std::string host = options.host.empty() ? ThisHost() : options.host;
  Author author{options.epoch, options.rank, 0};
  OwnMember own;
  VARVE_RETURN_IF_ERROR(place.log->Refresh());
  const auto candidates = place.log->With(
      [&](const GroupState& state) { return FindCandidates(state, options, host); });
  for (const MemberId id : candidates) {
    const bool is_best = id == candidates.front();
    auto opened = OpenPatiently(place, id, options.store, is_best ? kPatience : 0ms);
    if (!opened.ok()) {
      VARVE_RETURN_IF_ERROR(place.log->Refresh());  // it may have been removed meanwhile
      // If it is locked or gone, this rank saves in another member. A member that the rank had, and
      // that cannot be opened, is an error. Otherwise the rank would save all of its state again
      // without a warning. A folder that is not there was moved away, as the message says.
      Status failed = opened.status();
      std::error_code error;
      if (failed.code() == StatusCode::kNotFound &&
          fs::exists(MemberFolder(place.root, id), error)) {
        if (const Status lost = RequireNotLost(place, id); !lost.ok()) failed = lost;
      }
      const StatusCode code = failed.code();
      const bool was_own = is_best && place.log->With([&](const GroupState& state) {
        const auto member = state.members.find(id);
        return member != state.members.end() && member->second.rank == options.rank;
      });
      if (!was_own || code == StatusCode::kLocked || code == StatusCode::kNotFound) continue;
      return failed.WithContext(
          "rank " + std::to_string(options.rank) + " cannot open its member " +
          MemberFolder(place.root, id).string() +
          "; mend it, or move this folder out of the root to go on in a new one");
    }
    author.member = id;
    const Status status = Own(place, author, host, /*is_new=*/false);
    if (status.code() == StatusCode::kNotFound) continue;
    VARVE_RETURN_IF_ERROR(status);
    own.store = *std::move(opened);
    break;
  }
  if (own.store == nullptr) {
    // The log names it before it exists, because a folder that no record names is debris.
    author.member = NewMemberId();
    VARVE_RETURN_IF_ERROR(Own(place, author, host, /*is_new=*/true));
    auto opened = OpenPatiently(place, author.member, options.store, kPatienceForNew);
    if (!opened.ok()) {
      // After a new start of the job, others remove it as unused while it is being made.
      VARVE_RETURN_IF_ERROR(place.log->Refresh());
      VARVE_RETURN_IF_ERROR(
          place.log->With([&](const GroupState& state) { return CheckEpoch(state, author); }));
      return opened.status();
    }
    own.store = *std::move(opened);
  }
  own.author = author;
  VARVE_RETURN_IF_ERROR(AbortUndecided(place, author, own.store.get()));
  VARVE_ASSIGN_OR_RETURN(Swept swept, SweepMember(place, own.store.get(), kDropsARound));
  own.is_swept = swept.is_all;
  own.warnings = std::move(swept.warnings);
  return own;
}

Result<Swept> SweepMember(const GroupPlace& place, StoreImpl* member, uint64_t at_most) {
  std::set<AttemptId> stale_roots;  // for the mistake below only
  if (IsMutated(Mutation::kStaleRoots)) {
    place.log->With([&](const GroupState& state) {
      for (const auto& [number, attempt] : state.attempts) stale_roots.insert(number);
    });
  }
  PassMutationPoint(MutationPoint::kSweeping);
  VARVE_ASSIGN_OR_RETURN(const std::set<AttemptId> held, HeldAttempts(*member));
  VARVE_RETURN_IF_ERROR(place.log->Refresh());
  const std::vector<CheckpointId> closed = place.log->With([&](const GroupState& state) {
    std::vector<CheckpointId> ids;
    for (const AttemptId number : held) {
      const GroupAttempt* attempt = state.FindAttempt(number);
      const bool stays = IsMutated(Mutation::kStaleRoots)
                             ? stale_roots.contains(number) || (attempt && !attempt->committed)
                             : attempt != nullptr;
      if (!stays) ids.push_back({std::string(kMemberRun), number});
    }
    return ids;
  });
  Swept swept;
  for (const CheckpointId& id : closed) {
    swept.is_all = swept.dropped < at_most;
    if (!swept.is_all) break;
    const auto report = member->Drop({&id, 1}, {.reclaim = false});
    if (report.status().code() == StatusCode::kFailedPrecondition) continue;
    if (report.status().code() == StatusCode::kNotFound) continue;  // another thread was first
    VARVE_RETURN_IF_ERROR(report.status());
    ++swept.dropped;
    for (const std::string& warning : report->warnings) {
      swept.warnings.push_back("member " + member->path().filename().string() + ": " + warning);
    }
  }
  return swept;
}

Status RemoveMemberIfUnused(const GroupPlace& place, MemberId member,
                            std::unique_ptr<StoreImpl> store) {
  bool removed = false;
  VARVE_RETURN_IF_ERROR(
      place.log->Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
        const auto it = state.members.find(member);
        removed = it == state.members.end();
        if (removed || it->second.epoch == state.epoch || state.IsInUse(member)) {
          return std::optional<GroupRecord>();
        }
        return std::optional(GroupRecord{{}, RemoveMemberRecord{member}});
      }));
  if (!removed) return Status::Ok();
  store.reset();
  VARVE_RETURN_IF_ERROR(place.log->records()->Erase(SlotName(member)));
  // A process that opens it from here on finds that it is no member.
  return RemoveFolder(MemberFolder(place.root, member));
}

Status RemoveDebris(const GroupPlace& place) {
  VARVE_RETURN_IF_ERROR(place.log->RemoveDebris());
  VARVE_ASSIGN_OR_RETURN(const auto files, ListFolder(place.root));
  for (const fs::path& path : files) {
    if (!path.filename().string().starts_with(kTemporaryPrefix)) continue;
    VARVE_RETURN_IF_ERROR(RemoveFolder(path));
  }
  // As with attempts: a folder that is listed first and is no member afterwards was removed.
  VARVE_ASSIGN_OR_RETURN(const auto folders, ListFolder(MembersFolder(place.root)));
  VARVE_ASSIGN_OR_RETURN(const auto slots, place.log->records()->Names(kSlotsFolder));
  VARVE_RETURN_IF_ERROR(place.log->Refresh());
  for (const fs::path& path : folders) {
    const bool is_member = IsMember(place, ParseMember(path.filename()));
    if (!is_member && !IsLocked(path)) VARVE_RETURN_IF_ERROR(RemoveFolder(path));
  }
  for (const std::string& name : slots) {
    const auto id = ParseMember(name);
    if (!id.has_value() || IsMember(place, id)) continue;
    VARVE_RETURN_IF_ERROR(place.log->records()->Erase(SlotName(*id)));
  }
  return SweepCatalogues(place);
}

Status SweepCatalogues(const GroupPlace& place) {
  VARVE_ASSIGN_OR_RETURN(const auto files, ListCatalogues(place.root));
  VARVE_RETURN_IF_ERROR(place.log->Refresh());
  for (const auto& file : files) {
    const bool stays = place.log->With([&](const GroupState& state) {
      const GroupAttempt* attempt = state.FindAttempt(file.second);
      return attempt != nullptr && (!attempt->committed || IsWholeCatalogue(file.first));
    });
    if (!stays) VARVE_RETURN_IF_ERROR(RemoveFolder(file.first));
  }
  return Status::Ok();
}

}  // namespace varve::internal
