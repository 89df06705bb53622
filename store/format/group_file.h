// SPDX-License-Identifier: Apache-2.0
//
// GROUP, the plain file that makes a folder the root of a group. Nothing of it but the version ever
// changes. Stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/digest.h"
#include "varve/result.h"

namespace varve {

inline constexpr std::string_view kGroupFileName = "GROUP";

// 2: the log holds no parts of committed attempts, and catalogues are cut. 3: nor those of open
// ones, which are in slots; snapshots are files of their own.
inline constexpr uint32_t kGroupVersion = 3;

struct GroupFile {
  uint32_t version = kGroupVersion;
  Digest group_id;            // random
  uint64_t digest_seed = 0;   // of every member
  uint64_t incompatible = 0;  // features without which the group cannot be used
};

// Whether the folder is a root.
bool IsGroupRoot(const std::filesystem::path& path);
// The root of the group that the store in `path` is a member of. Empty: it is a member of none.
std::filesystem::path RootOfMember(const std::filesystem::path& path);
// kNotFound: the folder has what a root has, but no GROUP file.
Status CheckNotLost(const std::filesystem::path& path);

// Makes a root of a folder that is new, empty, or holds the debris of a call that was cut short; of
// several who try, one does it and all get its GROUP. kFailedPrecondition: it holds something else.
Result<GroupFile> CreateOrReadGroup(const std::filesystem::path& root);

// Gives the file the version that this varve writes, so that older ones say that they are too old.
Status UpgradeGroupFile(const std::filesystem::path& root, const GroupFile& group);

// kNotFound: no root. kFailedPrecondition: made by a newer varve. kCorruption: damaged.
Result<GroupFile> ReadGroupFile(const std::filesystem::path& root);

std::filesystem::path LogFolder(const std::filesystem::path& root);
std::filesystem::path MembersFolder(const std::filesystem::path& root);
std::filesystem::path CataloguesFolder(const std::filesystem::path& root);

}  // namespace varve
