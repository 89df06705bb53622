// SPDX-License-Identifier: Apache-2.0
#include "tests/store/model/copy_folder.h"

#include <sys/stat.h>

#include <map>
#include <string>
#include <tuple>

namespace varve::internal::testing {
namespace {

namespace fs = std::filesystem;

// Everything that changes when a file does.
using Stamp = std::tuple<ino_t, off_t, time_t, decltype(timespec::tv_nsec)>;

std::map<std::string, Stamp> StampsOf(const fs::path& folder) {
  std::map<std::string, Stamp> stamps;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    struct stat info;
    if (::stat(it->path().c_str(), &info) != 0) continue;
    stamps[it->path()] = {info.st_ino, info.st_size, info.st_ctim.tv_sec, info.st_ctim.tv_nsec};
  }
  return stamps;
}

// Returns false when a file has gone meanwhile.
bool Copy(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_directories(to, error);
  for (auto it = fs::recursive_directory_iterator(from, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const fs::path target = to / fs::relative(it->path(), from, error);
    if (error) return false;
    if (it->is_directory(error)) {
      fs::create_directories(target, error);
    } else if (it->path().filename() != "RESERVE") {
      fs::copy_file(it->path(), target, error);
    }
    if (error) return false;
  }
  return !error;
}

}  // namespace

Status CopyAtOneMoment(const fs::path& from, const fs::path& to) {
  constexpr int kMostTries = 1000;
  for (int tries = 0; tries < kMostTries; ++tries) {
    std::error_code ignored;
    fs::remove_all(to, ignored);
    const auto before = StampsOf(from);
    if (Copy(from, to) && StampsOf(from) == before) return Status::Ok();
  }
  return Status::Aborted(from.string() + " changes all the time");
}

}  // namespace varve::internal::testing
