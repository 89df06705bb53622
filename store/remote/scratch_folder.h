// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "base/util.h"
#include "varve/status.h"

namespace varve::internal {

// A temporary folder that is removed with all it holds. Thread rule: one thread.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    std::string path = (std::filesystem::temp_directory_path(error) / "varve-push-XXXXXX").string();
    if (error || ::mkdtemp(path.data()) == nullptr) {
      status_ = ErrnoStatus("make a temporary folder", path, error ? error.value() : errno);
    } else {
      path_ = path;
    }
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const Status& status() const { return status_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  Status status_;
  std::filesystem::path path_;
};

}  // namespace varve::internal
