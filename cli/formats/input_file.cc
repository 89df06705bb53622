// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/input_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace varve::internal::formats {
namespace {

Status FileError(const std::filesystem::path& path, int error) {
  std::string message = path.string() + ": " + std::strerror(error);
  return error == ENOENT ? Status::NotFound(std::move(message))
                         : Status::IOError(std::move(message));
}

Status CutError(const std::filesystem::path& path, uint64_t end, uint64_t bytes_before) {
  return Status::IOError(path.string() + ": at byte " + std::to_string(end) +
                         ": the file ends; it had " + std::to_string(bytes_before) +
                         " bytes when it was opened, and was cut since. Import it again when "
                         "nobody writes to it");
}

int64_t ModifiedNs(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

Result<std::shared_ptr<InputFile>> InputFile::Open(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for its writer instead of failing.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(path, errno);
  const std::shared_ptr<InputFile> file(new InputFile(path, fd));
  VARVE_RETURN_IF_ERROR(file->Map());
  return file;
}

// Reserves addresses for all bytes. Memory is used page by page, for what is fetched.
Status InputFile::Map() {
  struct stat info;
  if (::fstat(fd_, &info) != 0) return FileError(path_, errno);
  if (!S_ISREG(info.st_mode)) return Status::IOError(path_.string() + ": not a regular file");
  modified_ns_ = ModifiedNs(info);
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return Status::Ok();  // mmap refuses a length of 0
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return FileError(path_, errno);
  bytes_ = std::span(static_cast<std::byte*>(data), size);
  return Status::Ok();
}

InputFile::~InputFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  ::close(fd_);
}

Status InputFile::Fetch(std::span<const std::byte> part) {
  if (part.empty()) return Status::Ok();
  return Read(part, bytes_.data() + (part.data() - bytes_.data()));
}

Status InputFile::Read(std::span<const std::byte> part, std::byte* out) const {
  if (part.empty()) return Status::Ok();
  uint64_t offset = static_cast<uint64_t>(part.data() - bytes_.data());
  for (size_t left = part.size(); left > 0;) {
    const ssize_t got = ::pread(fd_, out, left, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path_, errno);
    if (got == 0) return CutError(path_, offset, bytes_.size());
    out += got;
    offset += static_cast<uint64_t>(got);
    left -= static_cast<size_t>(got);
  }
  return CheckUnchanged();
}

// If the file has changed, earlier reads and later reads would be of different files.
Status InputFile::CheckUnchanged() const {
  struct stat info;
  if (::fstat(fd_, &info) != 0) return FileError(path_, errno);
  if (ModifiedNs(info) == modified_ns_ && static_cast<size_t>(info.st_size) == bytes_.size()) {
    return Status::Ok();
  }
  const auto end = static_cast<uint64_t>(info.st_size);
  if (end < bytes_.size()) return CutError(path_, end, bytes_.size());
  return Status::IOError(path_.string() + ": was written to while it was read: it had " +
                         std::to_string(bytes_.size()) + " bytes, and has " +
                         std::to_string(info.st_size) +
                         " now. Import it again when nobody writes to it");
}

FetchBytes FetcherOf(InputFile* file) {
  return [file](std::span<const std::byte> part) { return file->Fetch(part); };
}

}  // namespace varve::internal::formats
