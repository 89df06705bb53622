// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace varve::formats {
namespace {

Status FileError(const std::filesystem::path& path, int error) {
  std::string message = path.string() + ": " + std::strerror(error);
  return error == ENOENT ? Status::NotFound(std::move(message))
                         : Status::IOError(std::move(message));
}

Result<std::span<const std::byte>> MapDescriptor(const std::filesystem::path& path, int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return FileError(path, errno);
  if (!S_ISREG(info.st_mode)) return Status::IOError(path.string() + ": not a regular file");
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return std::span<const std::byte>();  // mmap refuses a length of 0
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return FileError(path, errno);
  return std::span(static_cast<const std::byte*>(data), size);
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for its writer instead of failing.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(path, errno);
  Result<std::span<const std::byte>> bytes = MapDescriptor(path, fd);
  ::close(fd);
  if (!bytes.ok()) return bytes.status();
  return MappedFile(*bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace varve::formats
