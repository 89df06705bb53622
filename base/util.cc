// SPDX-License-Identifier: Apache-2.0
#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/file_descriptor.h"

namespace varve::internal {

std::string StepName(std::string_view run, uint64_t step) {
  return "step " + std::to_string(step) + " of run " + std::string(run);
}

void AddStepName(std::string_view run, uint64_t step, std::string* list) {
  *list += (list->empty() ? "" : ", ") + StepName(run, step);
}

std::string ShapeName(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

bool IsNoSpace(const Status& status) {
  // RocksDB and errno both carry the system's own sentence. A compaction that would not fit is
  // refused beforehand, in RocksDB's words.
  return !status.ok() && (status.message().find(std::strerror(ENOSPC)) != std::string::npos ||
                          status.message().find(std::strerror(EDQUOT)) != std::string::npos ||
                          status.message().find("Compaction too large") != std::string::npos);
}

bool IsShortage(const Status& status) {
  if (status.code() == StatusCode::kUnavailable) return true;
  return !status.ok() && std::ranges::any_of(std::array{EMFILE, ENFILE, ENOMEM}, [&](int error) {
    return status.message().find(std::strerror(error)) != std::string::npos;
  });
}

Status ErrnoStatus(std::string_view what, const std::filesystem::path& path, int error) {
  std::string message =
      "cannot " + std::string(what) + " " + path.string() + ": " + std::strerror(error);
  // ENOTDIR: a part of the path is a file, so there is nothing below it.
  return error == ENOENT || error == ENOTDIR ? Status::NotFound(std::move(message))
                                             : Status::IOError(std::move(message));
}

Status SyncFolder(const std::filesystem::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open()) return ErrnoStatus("open folder", path, errno);
  if (::fsync(fd.get()) != 0) return ErrnoStatus("sync folder", path, errno);
  return Status::Ok();
}

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view contents) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  {
    const FileDescriptor fd(
        ::open(temporary.c_str(),
               O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
    if (!fd.is_open()) return ErrnoStatus("create", temporary, errno);
    VARVE_RETURN_IF_ERROR(WriteAll(fd.get(), AsBytes(contents), temporary));
    if (::fdatasync(fd.get()) != 0) return ErrnoStatus("sync", temporary, errno);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoStatus("rename", path, errno);
  return SyncFolder(path.parent_path());
}

Result<std::string> ReadSmallFile(const std::filesystem::path& path, size_t max_bytes) {
  VARVE_ASSIGN_OR_RETURN(const FileDescriptor fd, OpenFileToRead(path));
  return ReadAtMost(fd.get(), max_bytes, path);
}

Result<std::string> ReadSmallFileOrPipe(const std::filesystem::path& path, size_t max_bytes) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return ErrnoStatus("open", path, errno);
  return ReadAtMost(fd.get(), max_bytes, path);
}

// Not by std::filesystem, which ends the process if there is no memory for a name. A file is looked
// at by its name in its folder, which takes less time than by its path.
FolderUse MeasureFolder(const std::filesystem::path& path) {
  FolderUse use;
  std::vector<std::string> folders = {path.string()};
  // Files may vanish while we look: they count as gone.
  const auto note = [&](const std::string& place, int error) {
    if (error != 0 && error != ENOENT && error != ESTALE) {
      use.errors.push_back(ErrnoStatus("look into", place, error).message());
    }
  };
  while (!folders.empty()) {
    const std::string folder = std::move(folders.back());
    folders.pop_back();
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
    if (listing == nullptr) {
      note(folder, errno);
      continue;
    }
    const auto next = [&] {
      errno = 0;
      return ::readdir(listing.get());
    };
    const dirent* entry = nullptr;
    while ((entry = next()) != nullptr) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat info {};
      if (::fstatat(::dirfd(listing.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        note(folder + "/" + entry->d_name, errno);
      } else if (S_ISDIR(info.st_mode)) {
        folders.push_back(folder + "/" + entry->d_name);
      } else if (S_ISREG(info.st_mode)) {
        use.allocated_bytes += static_cast<uint64_t>(info.st_blocks) * 512;
        ++use.num_files;
      }
    }
    note(folder, errno);
  }
  return use;
}

constexpr std::string_view kDiskBytes = "disk_bytes: ";

std::string DiskBytesWarning(const std::string& error) { return std::string(kDiskBytes) + error; }

bool IsAboutDiskBytes(std::string_view warning) { return warning.starts_with(kDiskBytes); }

}  // namespace varve::internal
