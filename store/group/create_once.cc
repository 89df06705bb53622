// SPDX-License-Identifier: Apache-2.0
#include "store/group/create_once.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>

#include "store/util.h"

namespace varve {
namespace {

// A temporary file with a random name, which goes with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& folder) {
    std::random_device random;
    char name[32];
    std::snprintf(name, sizeof(name), "%08x%08x", random(), random());
    path_ = folder / (std::string(kTemporaryPrefix) + name);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    error_ = fd_ < 0 ? errno : 0;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  const std::filesystem::path& path() const { return path_; }

  Status Write(std::string_view bytes) const {
    if (fd_ < 0) return ErrnoStatus("create", path_, error_);
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus("write", path_, errno);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return ::fdatasync(fd_) == 0 ? Status::Ok() : ErrnoStatus("sync", path_, errno);
  }

  // Names of this file; 0 when that cannot be told.
  uint64_t NumLinks() const {
    struct stat info {};
    return ::fstat(fd_, &info) == 0 ? info.st_nlink : 0;
  }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int error_ = 0;
};

}  // namespace

Result<CreateOutcome> CreateOnce(const std::filesystem::path& path, std::string_view bytes) {
  const TemporaryFile file(path.parent_path());
  VARVE_RETURN_IF_ERROR(file.Write(bytes));
  const int error = ::link(file.path().c_str(), path.c_str()) == 0 ? 0 : errno;
  const uint64_t links = file.NumLinks();
  if (error == 0 || links == 2) {
    return SyncFolder(path.parent_path()).ok() ? CreateOutcome::kOk : CreateOutcome::kUnknown;
  }
  if (error == EEXIST) return CreateOutcome::kExists;
  // Somebody has taken the temporary file for debris.
  if (links == 0) return CreateOutcome::kUnknown;
  return ErrnoStatus("link", path, error);
}

}  // namespace varve
