// SPDX-License-Identifier: Apache-2.0
#include "base/folders.h"

#include <string>
#include <system_error>
#include <vector>

#include "base/util.h"

namespace varve::internal {

Status MakeDurableFolders(const std::filesystem::path& path) {
  std::error_code error;
  std::vector<std::filesystem::path> missing;
  for (std::filesystem::path folder = std::filesystem::absolute(path).lexically_normal();
       !std::filesystem::exists(folder, error) && folder.has_relative_path();
       folder = folder.parent_path()) {
    missing.push_back(folder);
  }
  for (; !missing.empty(); missing.pop_back()) {
    const std::filesystem::path& folder = missing.back();
    std::filesystem::create_directory(folder, error);
    if (error) {
      return Status::IOError("cannot create folder " + folder.string() + ": " + error.message());
    }
    const Status synced = SyncFolder(folder.parent_path());
    if (synced.ok()) continue;
    std::filesystem::remove(folder, error);  // so that whoever tries again syncs its name
    return synced;
  }
  if (std::filesystem::is_directory(path, error)) return Status::Ok();
  if (!error) error = std::make_error_code(std::errc::not_a_directory);
  return Status::IOError("cannot create folder " + path.string() + ": " + error.message());
}

std::vector<std::filesystem::directory_entry> EntriesOf(const std::filesystem::path& folder,
                                                        std::error_code* error) {
  std::vector<std::filesystem::directory_entry> entries;
  for (std::filesystem::directory_iterator it(folder, *error), end; !*error && it != end;
       it.increment(*error)) {
    entries.push_back(*it);
  }
  return entries;
}

}  // namespace varve::internal
