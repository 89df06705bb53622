// SPDX-License-Identifier: Apache-2.0
#include "store/remote/scratch_folder.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/util.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr int kMaxTries = 100;

// "varve-scratch-HOST-". Locks of folders do not reach other hosts on every file system that hosts
// share. So a host looks only at its own folders. Versions before this lock called theirs
// varve-push-XXXXXX.
std::string Prefix() {
  char host[HOST_NAME_MAX + 1] = {};
  if (::gethostname(host, HOST_NAME_MAX) != 0) host[0] = '\0';
  std::string name(host);
  std::ranges::replace(name, '/', '_');
  return "varve-scratch-" + name + "-";
}

// Whether `name` is the prefix with six characters of mkdtemp. The prefix of one host may begin
// that of another.
bool IsOfThisHost(const std::string& name, const std::string& prefix) {
  constexpr size_t kRandom = 6;
  return name.size() == prefix.size() + kRandom && name.starts_with(prefix) &&
         std::ranges::all_of(name.substr(prefix.size()),
                             [](unsigned char c) { return std::isalnum(c) != 0; });
}

FileDescriptor OpenFolder(const fs::path& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Whether the folder that is open has another name now, or none.
bool IsGone(const FileDescriptor& folder, const fs::path& path) {
  struct stat opened = {};
  struct stat named = {};
  if (::fstat(folder.get(), &opened) != 0) return false;
  if (::lstat(path.c_str(), &named) != 0) return errno == ENOENT;
  return opened.st_dev != named.st_dev || opened.st_ino != named.st_ino;
}

bool IsOfThisUser(const FileDescriptor& folder) {
  struct stat info = {};
  return ::fstat(folder.get(), &info) == 0 && info.st_uid == ::geteuid();
}

// Removes the scratch folders of this user whose processes were killed: nobody holds their locks.
void RemoveAbandoned(const fs::path& parent) {
  const std::string prefix = Prefix();
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    const fs::path& path = at->path();
    if (!IsOfThisHost(path.filename().string(), prefix)) continue;
    const FileDescriptor folder = OpenFolder(path);
    if (!folder.is_open() || !IsOfThisUser(folder)) continue;
    if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 || IsGone(folder, path)) continue;
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) {
    status_ = Status::IOError("cannot use the folder for temporary files, which TMPDIR names: " +
                              error.message());
    return;
  }
  RemoveAbandoned(parent);
  for (int tries = 0; !Make(parent); ++tries) {
    if (tries < kMaxTries) continue;
    status_ = Status::IOError("cannot keep a temporary folder in " + parent.string() +
                              ": each is removed at once");
    return;
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

bool ScratchFolder::Make(const fs::path& parent) {
  std::string path = (parent / Prefix()).string() + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    status_ = ErrnoStatus("make a temporary folder", path, errno);
    return true;
  }
  FileDescriptor folder = OpenFolder(path);
  if (!folder.is_open()) {
    const int code = errno;
    if (code == ENOENT) return false;
    ::rmdir(path.c_str());
    status_ = ErrnoStatus("open", path, code);
    return true;
  }
  int locked = 0;
  while ((locked = ::flock(folder.get(), LOCK_EX)) != 0 && errno == EINTR) {
  }
  if (locked != 0 && errno == ENOLCK) {  // another process may get a lock
    ::rmdir(path.c_str());
    status_ = ErrnoStatus("lock", path, ENOLCK);
    return true;
  }
  // After any other error this file system has no locks of folders, for nobody.
  if (IsGone(folder, path)) return false;
  path_ = path;
  lock_.emplace(std::move(folder));
  return true;
}

}  // namespace varve::internal
