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

std::string TemporaryName(const std::filesystem::path& path, int number) {
  return FolderOf(path) / (".varve-" + std::to_string(::getpid()) + "-" + std::to_string(number));
}

// Calls `make` with one new name after the other until it does not fail with EEXIST. Returns the
// name, and the error or 0.
template <typename Make>
std::pair<std::string, int> WithTemporaryName(const std::filesystem::path& path, const Make& make) {
  std::string name;
  int error = EEXIST;
  for (int number = 0; error == EEXIST && number < 10'000; ++number) {
    name = TemporaryName(path, number);
    error = make(name.c_str());
  }
  return {name, error};
}

std::string LinkOf(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

// Opens a new file without a name in the folder of `path`, so that a process that is killed leaves
// nothing of it. -1: the file system has no such files, or there is no /proc to name one later.
int OpenNameless(const std::filesystem::path& path) {
  const int fd = ::open(FolderOf(path).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd < 0 || ::access(LinkOf(fd).c_str(), F_OK) == 0) return fd;
  ::close(fd);
  return -1;
}

int GiveName(int fd, const char* name) {
  const int failed = ::linkat(AT_FDCWD, LinkOf(fd).c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW);
  return failed == 0 ? 0 : errno;
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

// The same for a file without a name. What is replaced needs a rename, and so the new file needs a
// temporary name for a moment.
int PlaceNameless(int fd, const std::filesystem::path& to, bool overwrite) {
  const int error = GiveName(fd, to.c_str());
  if (error != EEXIST || !overwrite) return error;
  const auto [name, failed] =
      WithTemporaryName(to, [fd](const char* free) { return GiveName(fd, free); });
  if (failed != 0) return failed;
  const int moved = Place(name, to, overwrite);
  if (moved != 0) ::unlink(name.c_str());
  return moved;
}

}  // namespace

Result<OutputFile> OutputFile::Create(const std::filesystem::path& path, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) {
    return PathError(path, EEXIST);
  }
  if (const int fd = OpenNameless(path); fd >= 0) return OutputFile(path, {}, fd, overwrite);
  // It does not use mkstemp, whose files only their owner may read, because an output file follows
  // the umask.
  int fd = -1;
  const auto [name, error] = WithTemporaryName(path, [&fd](const char* free) {
    fd = ::open(free, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd >= 0 ? 0 : errno;
  });
  if (error != 0) return PathError(path, error);
  return OutputFile(path, name, fd, overwrite);
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
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
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
  const int error = temporary_.empty() ? PlaceNameless(fd_, path_, overwrite_)
                                       : Place(temporary_, path_, overwrite_);
  if (error != 0) return PathError(path_, error);
  ::close(std::exchange(fd_, -1));
  return SyncFolder(FolderOf(path_));
}

}  // namespace varve::internal::formats
