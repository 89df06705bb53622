// SPDX-License-Identifier: Apache-2.0
//
// GROUP, the plain file that makes a folder the root of a group. Only its version ever changes.
// Stateless.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/digest.h"
#include "varve/result.h"

namespace varve::internal {

inline constexpr std::string_view kGroupFileName = "GROUP";

// Version 2: the log holds no parts of committed attempts, and catalogues are cut. Version 3: it
// holds no parts of open attempts either, because those are in slots. Snapshots are files of their
// own.
inline constexpr uint32_t kGroupVersion = 3;

struct GroupFile {
  uint32_t version = kGroupVersion;
  Digest group_id;            // random
  uint64_t digest_seed = 0;   // of every member
  uint64_t incompatible = 0;  // features without which the group cannot be used
};

// True when the folder is a root.
bool IsGroupRoot(const std::filesystem::path& path);
// Returns the root of the group that the store in `path` is a member of, or an empty path.
std::filesystem::path RootOfMember(const std::filesystem::path& path);
// kNotFound: the folder has what a root has, but no GROUP file.
Status CheckNotLost(const std::filesystem::path& path);

// Makes the folder a root. It must be new or empty, or hold what an interrupted call has left. If
// several call this, one makes the root and all get its GROUP. kFailedPrecondition: the folder
// holds something else.
Result<GroupFile> CreateOrReadGroup(const std::filesystem::path& root);

// Sets the version to the one that this varve writes. Older ones then say that they are too old.
Status UpgradeGroupFile(const std::filesystem::path& root, const GroupFile& group);

// kNotFound: it is not a root. kFailedPrecondition: a newer varve made it. kCorruption: it is
// damaged.
Result<GroupFile> ReadGroupFile(const std::filesystem::path& root);

// kCorruption: a folder of the root is a link. What a writer writes or removes there would be
// somewhere else.
Status CheckFoldersAreNoLinks(const std::filesystem::path& root);

std::filesystem::path LogFolder(const std::filesystem::path& root);
std::filesystem::path MembersFolder(const std::filesystem::path& root);
std::filesystem::path CataloguesFolder(const std::filesystem::path& root);

}  // namespace varve::internal
