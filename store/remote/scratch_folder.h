// SPDX-License-Identifier: Apache-2.0
//
// A folder for what a push makes for itself, below the folder for temporary files.
#pragma once

#include <filesystem>
#include <optional>

#include "base/file_descriptor.h"
#include "varve/status.h"

namespace varve::internal {

// The folder is removed with all it holds. If the process is killed first, the next scratch folder
// of this user on this host removes it. Thread rule: one thread.
class ScratchFolder {
 public:
  ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  const Status& status() const { return status_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  // Makes a folder and locks it, or sets the status. False: another process took the folder for an
  // abandoned one.
  bool Make(const std::filesystem::path& parent);

  Status status_;
  std::filesystem::path path_;
  std::optional<FileDescriptor> lock_;  // of the folder. The system frees it if this process ends
};

}  // namespace varve::internal
