// SPDX-License-Identifier: Apache-2.0
//
// A file that is made whole, once, by one of those who try. Any thread and any process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "varve/result.h"
#include "varve/status.h"

namespace varve {

// What became of a Create.
enum class CreateOutcome {
  kOk,       // this call made it, and it is durable
  kExists,   // somebody else had made it
  kUnknown,  // it may or may not be there, or not yet be durable: look
};

// What files that are not finished yet begin with.
inline constexpr std::string_view kTemporaryPrefix = "tmp-";

// A temporary file with a random name, which goes with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& folder);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  const std::filesystem::path& path() const { return path_; }
  Status Write(std::string_view bytes) const;
  Status Sync() const;
  // Gives it this name instead, in place of what has it.
  Status RenameTo(const std::filesystem::path& path);
  // Names of this file; 0 when that cannot be told.
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

}  // namespace varve
