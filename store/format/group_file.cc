// SPDX-License-Identifier: Apache-2.0
#include "store/format/group_file.h"

#include <system_error>
#include <vector>

#include "base/create_once.h"
#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/random_number.h"
#include "base/util.h"
#include "store/format/fixed_file.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// docs/format.md, "GROUP".
constexpr std::string_view kGroupMagic = "varveg\n\x1a";
constexpr size_t kNumGroupFields = 4;

std::string Encode(const GroupFile& group) {
  return EncodeFixedFile(
      kGroupMagic, {group.version,
                    {group.group_id.lo, group.group_id.hi, group.digest_seed, group.incompatible}});
}

// The folder is new or empty, or holds only what CreateOrReadGroup makes before GROUP.
Status CheckMayBecomeRoot(const fs::path& root) {
  std::error_code error;
  VARVE_RETURN_IF_ERROR(CheckNotLost(root));
  for (const fs::directory_entry& entry : EntriesOf(root, &error)) {
    const std::string name = entry.path().filename();
    if (name == "log" || name == "members" || name == "catalogues" ||
        name.starts_with(kTemporaryPrefix) || name == kGroupFileName) {
      continue;
    }
    return Status::FailedPrecondition("folder " + root.string() + " is not empty (it holds " +
                                      name + ") and not the root of a group");
  }
  if (error) return Status::IOError("cannot list " + root.string() + ": " + error.message());
  return Status::Ok();
}

Status MakeFolders(const fs::path& root) {
  std::error_code error;
  for (const fs::path& folder : {LogFolder(root), MembersFolder(root), CataloguesFolder(root)}) {
    fs::create_directories(folder, error);
    if (error) return Status::IOError("cannot create " + folder.string() + ": " + error.message());
  }
  VARVE_RETURN_IF_ERROR(SyncFolder(root));
  return SyncFolder(fs::absolute(root).lexically_normal().parent_path());
}

}  // namespace

Status CheckFoldersAreNoLinks(const fs::path& root) {
  for (const char* const name : {"log", "log/slots", "log/states", "members", "catalogues"}) {
    VARVE_RETURN_IF_ERROR(CheckIsNoLink(root / name));
  }
  return Status::Ok();
}

fs::path LogFolder(const fs::path& root) { return root / "log"; }
fs::path MembersFolder(const fs::path& root) { return root / "members"; }
fs::path CataloguesFolder(const fs::path& root) { return root / "catalogues"; }

bool IsGroupRoot(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / kGroupFileName, error);
}

fs::path RootOfMember(const fs::path& path) {
  std::error_code error;
  const fs::path full = fs::weakly_canonical(path, error);
  if (error || !full.has_parent_path()) return {};
  const fs::path root = full.parent_path().parent_path();
  return full.parent_path() == MembersFolder(root) && IsGroupRoot(root) ? root : fs::path();
}

Status CheckNotLost(const fs::path& path) {
  std::error_code error;
  for (const fs::path& folder : {LogFolder(path), MembersFolder(path)}) {
    if (!fs::exists(folder, error) || fs::is_empty(folder, error)) continue;
    if (IsGroupRoot(path)) return Status::Ok();  // it has one by now
    return Status::NotFound(path.string() + " has no " + std::string(kGroupFileName) +
                            " file, but " + folder.filename().string() +
                            "/ of a group: put the file back");
  }
  return Status::Ok();
}

Result<GroupFile> CreateOrReadGroup(const fs::path& root) {
  if (!IsGroupRoot(root)) {
    VARVE_RETURN_IF_ERROR(MakeDurableFolders(root));
    VARVE_RETURN_IF_ERROR(CheckMayBecomeRoot(root));
    VARVE_RETURN_IF_ERROR(MakeFolders(root));
    GroupFile group;
    group.group_id = {RandomNumber(), RandomNumber()};
    group.digest_seed = RandomNumber();
    VARVE_RETURN_IF_ERROR(CreateOnce(root / kGroupFileName, Encode(group)).status());
  }
  return ReadGroupFile(root);
}

Status UpgradeGroupFile(const fs::path& root, const GroupFile& group) {
  if (group.version == kGroupVersion) return Status::Ok();
  GroupFile upgraded = group;
  upgraded.version = kGroupVersion;
  return ReplaceFile(root / kGroupFileName, Encode(upgraded), /*durable=*/true);
}

Result<GroupFile> ReadGroupFile(const fs::path& root) {
  const fs::path path = root / kGroupFileName;
  const Result<FixedFile> file = ReadFixedFile(path, kGroupMagic, kGroupVersion, kNumGroupFields);
  if (file.status().code() == StatusCode::kNotFound) {
    return Status::NotFound("no group in " + root.string() + " (it has no GROUP file)");
  }
  if (!file.ok()) return file.status();
  if (file->version > kGroupVersion) {
    return Status::FailedPrecondition(path.string() + ": the group has version " +
                                      std::to_string(file->version) +
                                      ", this varve knows versions up to " +
                                      std::to_string(kGroupVersion) + "; use a newer varve");
  }
  const std::vector<uint64_t>& fields = file->fields;
  const GroupFile group{.version = file->version,
                        .group_id = {fields[0], fields[1]},
                        .digest_seed = fields[2],
                        .incompatible = fields[3]};
  if (group.incompatible != 0) {
    return Status::FailedPrecondition(path.string() +
                                      ": the group uses features that this varve does not "
                                      "know; use a newer varve");
  }
  return group;
}

}  // namespace varve::internal
