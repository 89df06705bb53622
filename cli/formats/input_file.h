// SPDX-License-Identifier: Apache-2.0
//
// A file to read. Another process may cut it short or write to it at the same time, and then a read
// is an error instead of a signal. Parsers see the file as one span of bytes. Memory holds only
// those that were fetched, so a large file costs little.
//
//   VARVE_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
//   VARVE_RETURN_IF_ERROR(file->Fetch(file->bytes().first(8)));
//   const uint64_t length = LoadU64(file->bytes());
//
// Thread rule: one thread at a time may call Fetch. Any thread may call the rest.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "varve/result.h"

namespace varve::internal::formats {

// Called before a part of a file's bytes is read.
using FetchBytes = std::function<Status(std::span<const std::byte> part)>;

class InputFile {
 public:
  // kNotFound: there is no such file. kIOError: it is not a regular file or cannot be read.
  static Result<std::shared_ptr<InputFile>> Open(const std::filesystem::path& path);

  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  // As many bytes as the file had when it was opened. They are zeros where they were not fetched.
  // Valid as long as this object.
  std::span<const std::byte> bytes() const { return bytes_; }

  // The first reads a part of bytes() into its place, the second into `out`, which must have room
  // for it. kIOError names the file. It says from which offset on the bytes are gone, or that the
  // file has changed since it was opened.
  Status Fetch(std::span<const std::byte> part);
  Status Read(std::span<const std::byte> part, std::byte* out) const;
  // kIOError: the file has changed since it was opened. Each read asks this, too.
  Status CheckUnchanged() const;

 private:
  InputFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status Map();

  const std::filesystem::path path_;
  const int fd_;
  std::span<std::byte> bytes_;
  int64_t modified_ns_ = 0;  // since 1970, as the file system says
};

// Returns a callback for parsers. `file` must outlive it.
FetchBytes FetcherOf(InputFile* file);

}  // namespace varve::internal::formats
