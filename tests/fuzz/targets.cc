// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace varve::internal::fuzz {
namespace {

namespace fs = std::filesystem;

class Scratch {
 public:
  Scratch() {
    const bool is_told = std::getenv("TMPDIR") != nullptr || !fs::is_directory("/dev/shm");
    path_ = (is_told ? fs::temp_directory_path() : fs::path("/dev/shm")) / "varve-fuzz-XXXXXX";
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

double ProcessorSeconds() {
  timespec time;
  Require(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
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
       {FrameTargets(), HintTargets(), StoreTargets(), CatalogueTargets(), FileTargets(),
        HookTargets(), ObjectTargets(), CommandTargets(), FormatTargets(), WholeTargets()}) {
    all.insert(all.end(), targets.begin(), targets.end());
  }
  return all;
}

}  // namespace varve::internal::fuzz
