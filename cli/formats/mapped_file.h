// SPDX-License-Identifier: Apache-2.0
//
// A file mapped for reading, so that an import hands its bytes to the store without a copy. The
// file must not shrink while it is mapped: touching a page that is gone kills the process.
// Thread rule: constant after Open; the bytes may be read from any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "varve/result.h"

namespace varve::formats {

class MappedFile {
 public:
  // kNotFound when there is no such file; kIOError when it is no regular file or cannot be mapped.
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Valid as long as this object, also when it is moved.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace varve::formats
