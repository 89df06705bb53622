// SPDX-License-Identifier: Apache-2.0
#include "store/group/group_file.h"

#include <cstring>
#include <random>
#include <system_error>

#include "store/group/create_once.h"
#include "store/util.h"

namespace varve {
namespace {

namespace fs = std::filesystem;

// docs/format.md, "GROUP". All integers little-endian.
constexpr char kMagic[8] = {'v', 'a', 'r', 'v', 'e', 'g', '\n', '\x1a'};
constexpr size_t kFileBytes = 56;
constexpr size_t kChecksumOffset = 48;

void PutLittle(char* at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<char>(value >> (8 * i));
}

uint64_t GetLittle(const char* at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(at[i]);
  return value;
}

uint64_t Checksum(std::string_view file) {
  return ComputeDigest(0, AsBytes(file.substr(0, kChecksumOffset))).lo;
}

std::string Encode(const GroupFile& group) {
  std::string file(kFileBytes, '\0');
  std::memcpy(file.data(), kMagic, sizeof(kMagic));
  PutLittle(&file[8], group.version, 4);
  PutLittle(&file[12], kFileBytes, 4);
  PutLittle(&file[16], group.group_id.lo, 8);
  PutLittle(&file[24], group.group_id.hi, 8);
  PutLittle(&file[32], group.digest_seed, 8);
  PutLittle(&file[40], group.incompatible, 8);
  PutLittle(&file[kChecksumOffset], Checksum(file), 8);
  return file;
}

uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// New, empty, or with nothing in it but what CreateOrReadGroup makes before GROUP.
Status CheckMayBecomeRoot(const fs::path& root) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error)) {
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

fs::path LogFolder(const fs::path& root) { return root / "log"; }
fs::path MembersFolder(const fs::path& root) { return root / "members"; }
fs::path CataloguesFolder(const fs::path& root) { return root / "catalogues"; }

bool IsGroupRoot(const fs::path& path) {
  std::error_code error;
  return fs::exists(path / kGroupFileName, error);
}

Result<GroupFile> CreateOrReadGroup(const fs::path& root) {
  if (!IsGroupRoot(root)) {
    std::error_code error;
    fs::create_directories(root, error);
    if (error) return Status::IOError("cannot create " + root.string() + ": " + error.message());
    VARVE_RETURN_IF_ERROR(CheckMayBecomeRoot(root));
    VARVE_RETURN_IF_ERROR(MakeFolders(root));
    GroupFile group;
    group.group_id = {RandomNumber(), RandomNumber()};
    group.digest_seed = RandomNumber();
    VARVE_RETURN_IF_ERROR(CreateOnce(root / kGroupFileName, Encode(group)).status());
  }
  return ReadGroupFile(root);
}

Result<GroupFile> ReadGroupFile(const fs::path& root) {
  const std::string where = (root / kGroupFileName).string();
  Result<std::string> file = ReadSmallFile(where, 4096);
  if (!file.ok()) {
    if (file.status().code() != StatusCode::kNotFound) return file.status();
    return Status::NotFound("no group in " + root.string() + " (it has no GROUP file)");
  }
  if (file->size() < 16 || std::memcmp(file->data(), kMagic, sizeof(kMagic)) != 0) {
    return Status::Corruption(where + ": not a varve GROUP file (bad magic)");
  }
  GroupFile group;
  group.version = static_cast<uint32_t>(GetLittle(file->data() + 8, 4));
  if (group.version > kGroupVersion) {
    return Status::FailedPrecondition(where + ": the group has version " +
                                      std::to_string(group.version) +
                                      ", this varve knows versions up to " +
                                      std::to_string(kGroupVersion) + "; use a newer varve");
  }
  if (file->size() != kFileBytes) {
    return Status::Corruption(where + ": " + std::to_string(file->size()) + " bytes, expected " +
                              std::to_string(kFileBytes));
  }
  if (GetLittle(file->data() + kChecksumOffset, 8) != Checksum(*file)) {
    return Status::Corruption(where + ": checksum does not match");
  }
  group.group_id = {GetLittle(file->data() + 16, 8), GetLittle(file->data() + 24, 8)};
  group.digest_seed = GetLittle(file->data() + 32, 8);
  group.incompatible = GetLittle(file->data() + 40, 8);
  if (group.incompatible != 0) {
    return Status::FailedPrecondition(where +
                                      ": the group uses features that this varve does not "
                                      "know; use a newer varve");
  }
  return group;
}

}  // namespace varve
