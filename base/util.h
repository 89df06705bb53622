// SPDX-License-Identifier: Apache-2.0
//
// Small things that most files of the store need. All functions are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"

namespace varve::internal {

inline std::span<const std::byte> AsBytes(std::string_view s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}
inline std::string_view AsString(std::span<const std::byte> s) {
  return {reinterpret_cast<const char*>(s.data()), s.size()};
}

// Returns "step 10 of run main", the way messages name a checkpoint.
std::string StepName(std::string_view run, uint64_t step);
// Adds the step to a list of steps, which has a comma between each two.
void AddStepName(std::string_view run, uint64_t step, std::string* list);
// Returns a shape as "[2, 3]".
std::string ShapeName(std::span<const int64_t> shape);

// True when an error says that the disk is full.
bool IsNoSpace(const Status& status);
// True when an error says that this process lacks memory, threads or descriptors. It says nothing
// about what could not be read.
bool IsShortage(const Status& status);
// Returns the error "cannot WHAT PATH: strerror(errno)".
Status ErrnoStatus(std::string_view what, const std::filesystem::path& path, int error);

// Makes the names in a folder durable (fsync of the folder).
Status SyncFolder(const std::filesystem::path& path);
// Replaces a small file: temporary file, fdatasync, rename, fsync of the folder.
Status WriteFileAtomically(const std::filesystem::path& path, std::string_view contents);
// Reads at most so many bytes of a file of a store. Errors: those of OpenFileToRead, kIOError.
Result<std::string> ReadSmallFile(const std::filesystem::path& path, size_t max_bytes);
// The same of what a user names, which may be a pipe.
Result<std::string> ReadSmallFileOrPipe(const std::filesystem::path& path, size_t max_bytes);

// The bytes that the file system has allocated to all files below `path`, and the number of these
// files. Both leave out what `errors` names.
struct FolderUse {
  uint64_t allocated_bytes = 0;
  uint64_t num_files = 0;
  std::vector<std::string> errors{};  // "cannot look into PATH: why"
};
FolderUse MeasureFolder(const std::filesystem::path& path);
// A warning of StoreStats that one of `errors` makes, and whether a warning is one.
std::string DiskBytesWarning(const std::string& error);
bool IsAboutDiskBytes(std::string_view warning);

}  // namespace varve::internal
