// SPDX-License-Identifier: Apache-2.0
#include "varve/group.h"

#include <algorithm>
#include <system_error>

#include "base/guarded.h"
#include "base/random_number.h"
#include "base/util.h"
#include "store/group/group_store.h"
#include "store/group/posix_record_log.h"

namespace varve {
using namespace internal;

namespace {

Result<uint64_t> Start(const std::filesystem::path& root, uint32_t num_ranks) {
  if (num_ranks == 0) return Status::InvalidArgument("a group of 0 ranks, expected at least 1");
  VARVE_ASSIGN_OR_RETURN(const GroupFile file, CreateOrReadGroup(root));
  VARVE_RETURN_IF_ERROR(CheckFoldersAreNoLinks(root));
  VARVE_RETURN_IF_ERROR(UpgradeGroupFile(root, file));
  GroupLog log(MakePosixRecordLog(LogFolder(root)), file.digest_seed);
  const uint64_t nonce = RandomNumber();
  uint64_t epoch = 0;  // the one that was proposed
  VARVE_RETURN_IF_ERROR(
      log.Propose([&](const GroupState& state) -> Result<std::optional<GroupRecord>> {
        if (epoch != 0 && state.epoch == epoch && state.epoch_nonce == nonce) {
          return std::optional<GroupRecord>();
        }
        if (epoch != 0 && state.epoch > epoch) {
          return Status::Aborted("epoch " + std::to_string(state.epoch) +
                                 " of the job began at the same time");
        }
        epoch = state.epoch + 1;
        return std::optional(GroupRecord{{}, EpochRecord{epoch, nonce, num_ranks}});
      }));
  return epoch;
}

Result<GroupStatus> StatusOf(const std::filesystem::path& root) {
  VARVE_ASSIGN_OR_RETURN(const auto store, GroupStore::OpenPath(root, {}, /*for_writing=*/false));
  const GroupLog* const log = store->log();
  GroupStatus status = log->With([log](const GroupState& state) {
    GroupStatus found;
    found.epoch = state.epoch;
    found.num_ranks = state.num_ranks;
    found.num_members = state.members.size();
    for (const auto& [number, attempt] : state.attempts) {
      if (attempt.committed) continue;
      OpenSave& open = found.open_saves.emplace_back();
      open.id = attempt.id;
      std::vector<uint32_t> ranks;
      for (uint32_t rank = 0; rank < state.num_ranks; ++rank) {
        if (!attempt.parts.contains(rank)) ranks.push_back(rank);
      }
      SlotGatherer slots(log->records(), {log->seed(), number, attempt.nonce});
      open.missing_ranks = slots.Missing(state, ranks);
    }
    return found;
  });
  const FolderUse use = MeasureFolder(LogFolder(root));
  if (!use.errors.empty()) return Status::IOError(use.errors[0]);
  status.num_log_files = use.num_files;
  return status;
}

}  // namespace

bool Group::IsRoot(const std::filesystem::path& path) { return IsGroupRoot(path); }

Result<uint64_t> Group::StartEpoch(const std::filesystem::path& root, uint32_t num_ranks) {
  return Guarded("starting a job", [&] { return Start(root, num_ranks); });
}

Result<std::unique_ptr<Store>> Group::Join(const std::filesystem::path& root,
                                           const JoinOptions& options) {
  return Guarded("joining a group", [&]() -> Result<std::unique_ptr<Store>> {
    VARVE_ASSIGN_OR_RETURN(auto store, GroupStore::Join(root, options));
    return std::unique_ptr<Store>(std::move(store));
  });
}

Result<GroupStatus> Group::ReadStatus(const std::filesystem::path& root) {
  return Guarded("reading the state of a group", [&] { return StatusOf(root); });
}

}  // namespace varve
