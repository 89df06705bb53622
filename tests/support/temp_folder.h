// SPDX-License-Identifier: Apache-2.0
//
// A new empty folder. It is removed with all it holds when the object is destroyed. One thread at a
// time.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace varve::internal::testing {

class TempFolder {
 public:
  // Below $VARVE_TEST_DIR, or the system's folder for temporary files.
  TempFolder() {
    const char* root = std::getenv("VARVE_TEST_DIR");
    std::string path =
        (root != nullptr ? std::filesystem::path(root) : std::filesystem::temp_directory_path()) /
        "varve-test-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace varve::internal::testing
