// SPDX-License-Identifier: Apache-2.0
//
// An open file of this process, and writing to one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

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

// Writes all bytes at the place of the descriptor. `path` is the name of its file, for the error.
// Stateless.
Status WriteAll(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace varve::internal
