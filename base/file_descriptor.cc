// SPDX-License-Identifier: Apache-2.0
#include "base/file_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/util.h"

namespace varve::internal {

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Status CheckIsFile(const struct stat& info, const std::filesystem::path& path) {
  if (S_ISREG(info.st_mode)) return Status::Ok();
  const char* const what = S_ISDIR(info.st_mode)    ? "a folder"
                           : S_ISFIFO(info.st_mode) ? "a pipe"
                                                    : "neither a file nor a folder";
  return Status::Corruption(path.string() + " is " + what + ", expected a file");
}

Status CheckIsFile(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? CheckIsFile(info, path) : Status::Ok();
}

Status CheckIsNoLink(const std::filesystem::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return Status::Ok();
  return Status::Corruption(path.string() + " is a link, expected none. Remove it");
}

Result<FileDescriptor> ReplaceFile(const std::filesystem::path& path) {
  ::unlink(path.c_str());
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.is_open()) return ErrnoStatus("create", path, errno);
  return fd;
}

Result<FileDescriptor> OpenFileToRead(const std::filesystem::path& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.is_open()) return ErrnoStatus("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("look at", path, errno);
  VARVE_RETURN_IF_ERROR(CheckIsFile(info, path));
  return fd;
}

Result<std::vector<FileDescriptor>> ReserveDescriptors(size_t count) {
  std::vector<FileDescriptor> reserved;
  while (reserved.size() < count) {
    reserved.emplace_back(::open("/", O_PATH | O_CLOEXEC));
    if (!reserved.back().is_open()) return ErrnoStatus("open", "/", errno);
  }
  return reserved;
}

Result<std::string> ReadAtMost(int fd, size_t max_bytes, const std::filesystem::path& path) {
  constexpr size_t kFirstBytes = size_t{16} << 10;
  std::string contents;
  size_t size = 0;
  while (size < max_bytes) {
    // Memory is in proportion to the file, and not to max_bytes.
    if (size == contents.size()) {
      contents.resize(std::min(max_bytes, std::max(kFirstBytes, 2 * size)));
    }
    const ssize_t n = ::read(fd, contents.data() + size, contents.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("read", path, errno);
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  contents.resize(size);
  return contents;
}

Status WriteAll(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return Status::Ok();
}

}  // namespace varve::internal
