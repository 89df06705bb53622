// SPDX-License-Identifier: Apache-2.0
//
// Files that several threads or processes create or replace. They are always whole. Another process
// may remove a temporary file at any time, as if a killed process had left it. Any thread and any
// process may call this.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "varve/result.h"
#include "varve/status.h"

namespace varve::internal {

// The outcome of a CreateOnce.
enum class CreateOutcome {
  kOk,       // this call made the file, and it is durable
  kExists,   // another had made it
  kUnknown,  // it may be missing, or not durable yet: look
};

// The names of unfinished files start with this.
inline constexpr std::string_view kTemporaryPrefix = "tmp-";

// A temporary file with a random name. The destructor removes it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& folder);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  const std::filesystem::path& path() const { return path_; }
  Status Write(std::string_view bytes) const;
  Status Sync() const;
  // Renames it to `path` and replaces the file that is there.
  Status RenameTo(const std::filesystem::path& path);
  // Returns the number of names of this file, or 0 when that cannot be found out.
  uint64_t NumLinks() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int error_ = 0;
  bool is_renamed_ = false;
};

// Writes a temporary file beside `path`, syncs it, links it to `path`, and syncs the folder.
// Whether the link was made is decided by the link count of the temporary file, because over a
// network the answer to link(2) may get lost.
Result<CreateOutcome> CreateOnce(const std::filesystem::path& path, std::string_view bytes);

// Replaces the whole file at `path`, or makes it and its folder, whose parent must exist. If
// `durable`, it is durable when this returns. A temporary file that was removed is written again.
Status ReplaceFile(const std::filesystem::path& path, std::string_view bytes, bool durable);

}  // namespace varve::internal
