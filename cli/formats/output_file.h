// SPDX-License-Identifier: Apache-2.0
//
// A file that appears whole or not at all. It is written without a name in the same folder, synced,
// then gets its name. Where the file system has no files without a name, it has a temporary one.
// An object that is destroyed without Commit removes what it wrote.
//
//   VARVE_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create("out.npy", /*overwrite=*/false));
//   VARVE_RETURN_IF_ERROR(file.Append(bytes));
//   VARVE_RETURN_IF_ERROR(file.Commit());
//
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "varve/result.h"

namespace varve::internal::formats {

class OutputFile {
 public:
  // kAlreadyExists: `path` exists and `overwrite` is false. Commit checks that again, in one step
  // with the move. kIOError: the folder cannot be written.
  static Result<OutputFile> Create(const std::filesystem::path& path, bool overwrite);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) = delete;
  ~OutputFile();

  Status Append(std::span<const std::byte> bytes);
  Status Append(std::string_view text);
  // Makes the bytes durable and gives the file its name.
  Status Commit();

  const std::filesystem::path& path() const { return path_; }

 private:
  OutputFile(std::filesystem::path path, std::filesystem::path temporary, int fd, bool overwrite);

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: the file has no name yet
  int fd_ = -1;                      // -1 after Commit or a move
  bool overwrite_ = false;
};

}  // namespace varve::internal::formats
