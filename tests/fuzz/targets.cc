// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

namespace varve::internal::fuzz {
namespace {

namespace fs = std::filesystem;

class Scratch {
 public:
  Scratch() {
    path_ = (fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
            "varve-fuzz-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

const fs::path& ScratchFolder() {
  static const Scratch scratch;
  static const fs::path path = scratch.path();
  return path;
}

void WriteFile(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string ReadFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string ReadGolden(const std::string& name) { return ReadFile(fs::path(VARVE_GOLDEN) / name); }

std::vector<FuzzTarget> AllTargets() {
  std::vector<FuzzTarget> all;
  for (auto&& targets :
       {FrameTargets(), StoreTargets(), CatalogueTargets(), FileTargets(), HookTargets(),
        ObjectTargets(), CommandTargets(), FormatTargets(), WholeTargets()}) {
    all.insert(all.end(), targets.begin(), targets.end());
  }
  return all;
}

}  // namespace varve::internal::fuzz
