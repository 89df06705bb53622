// SPDX-License-Identifier: Apache-2.0
//
// An open file of this process, and writing to one.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "varve/result.h"
#include "varve/status.h"

namespace varve::internal {

// Owns a file descriptor. Thread rule: one thread at a time.
class FileDescriptor {
 public:
  // `fd` is what open has returned. A negative one is that of no file.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor();

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Opens a file of a store for reading. kNotFound: there is none. kCorruption: a folder, a pipe or a
// device has its name. Opening never waits, as it would for a pipe.
Result<FileDescriptor> OpenFileToRead(const std::filesystem::path& path);
// Returns kCorruption unless `info` is that of a file.
Status CheckIsFile(const struct stat& info, const std::filesystem::path& path);
// The same of what has the name now. A name of nothing, and one that cannot be looked at, pass.
Status CheckIsFile(const std::filesystem::path& path);
// Returns kCorruption if a link has the name. What is written to a store that came from a stranger
// must not lie elsewhere.
Status CheckIsNoLink(const std::filesystem::path& path);
// Opens a new file for writing. What had its name loses it, also a link, which is not followed.
Result<FileDescriptor> ReplaceFile(const std::filesystem::path& path);

// Opens `count` descriptors that nobody uses. Who must be able to open files later, when the
// process may have none left, holds them until then.
Result<std::vector<FileDescriptor>> ReserveDescriptors(size_t count);

// Reads from the place of the descriptor to the end of its file, or so many bytes. `path` is the
// name of the file, for the error. Stateless.
Result<std::string> ReadAtMost(int fd, size_t max_bytes, const std::filesystem::path& path);

// Writes all bytes at the place of the descriptor. `path` is the name of its file, for the error.
// Stateless.
Status WriteAll(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace varve::internal
