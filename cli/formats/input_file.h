// SPDX-License-Identifier: Apache-2.0
//
// A file that is read and may be cut short or written to meanwhile: that is an error, and no
// signal. Parsers see it as one span of bytes, which it holds only where they were fetched, so that
// a large file costs no memory.
//
//   VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
//   VARVE_RETURN_IF_ERROR(file->Fetch(file->bytes().first(8)));
//   const uint64_t length = LoadU64(file->bytes());
//
// Thread rule: Fetch by one thread at a time; the rest is constant and free for all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "varve/result.h"

namespace varve::formats {

// Called before a part of a file's bytes is looked at.
using FetchBytes = std::function<Status(std::span<const std::byte> part)>;

class InputFile {
 public:
  // kNotFound when there is no such file; kIOError when it is no regular file or cannot be read.
  static Result<std::shared_ptr<InputFile>> Open(const std::filesystem::path& path);

  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  // As many as the file had when it was opened; zeros where they were not fetched. Valid as long as
  // this object.
  std::span<const std::byte> bytes() const { return bytes_; }

  // Reads a part of bytes() into its place; or into `out`, which has room for it. kIOError names
  // the file, and the offset from which on it is gone, or says that it has changed since it was
  // opened.
  Status Fetch(std::span<const std::byte> part);
  Status Read(std::span<const std::byte> part, std::byte* out) const;

 private:
  InputFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status Map();
  Status CheckUnchanged() const;

  const std::filesystem::path path_;
  const int fd_;
  std::span<std::byte> bytes_;
  int64_t modified_ns_ = 0;  // since 1970, as the file system says
};

// For parsers; `file` must outlive it.
FetchBytes FetcherOf(InputFile* file);

}  // namespace varve::formats
