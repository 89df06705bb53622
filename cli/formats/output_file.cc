// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/util.h"

namespace varve::internal::formats {
namespace {

Status PathError(const std::filesystem::path& path, int error) {
  std::string message = path.string() + ": " + std::strerror(error);
  return error == EEXIST ? Status::AlreadyExists(std::move(message))
                         : Status::IOError(std::move(message));
}

std::filesystem::path FolderOf(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

struct Temporary {
  std::filesystem::path path;
  int fd;
};

// Makes a new file in the folder of `path`. It does not use mkstemp, whose files only their owner
// may read, because an output file follows the umask.
Result<Temporary> OpenTemporary(const std::filesystem::path& path) {
  const std::string prefix = ".varve-" + std::to_string(::getpid()) + "-";
  int error = EEXIST;
  for (int number = 0; error == EEXIST && number < 10'000; ++number) {
    std::filesystem::path name = FolderOf(path) / (prefix + std::to_string(number));
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return Temporary{std::move(name), fd};
    error = errno;
  }
  return PathError(path, error);
}

// Moves the file to its place. Without `overwrite` it does so only if nothing is there. A file
// system that cannot do that in one step says EINVAL and gets a hard link instead, which never
// replaces.
int Place(const std::filesystem::path& from, const std::filesystem::path& to, bool overwrite) {
  if (overwrite) return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  if (::link(from.c_str(), to.c_str()) != 0) return errno;
  ::unlink(from.c_str());
  return 0;
}

}  // namespace

Result<OutputFile> OutputFile::Create(const std::filesystem::path& path, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) {
    return PathError(path, EEXIST);
  }
  Result<Temporary> temporary = OpenTemporary(path);
  if (!temporary.ok()) return temporary.status();
  return OutputFile(path, temporary->path, temporary->fd, overwrite);
}

OutputFile::OutputFile(std::filesystem::path path, std::filesystem::path temporary, int fd,
                       bool overwrite)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd), overwrite_(overwrite) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      overwrite_(other.overwrite_) {}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

Status OutputFile::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return PathError(path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Status::Ok();
}

Status OutputFile::Append(std::string_view text) { return Append(AsBytes(text)); }

Status OutputFile::Commit() {
  if (::fsync(fd_) != 0) return PathError(path_, errno);
  if (const int error = Place(temporary_, path_, overwrite_); error != 0) {
    return PathError(path_, error);
  }
  ::close(std::exchange(fd_, -1));
  return SyncFolder(FolderOf(path_));
}

}  // namespace varve::internal::formats
