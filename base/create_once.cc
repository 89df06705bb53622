// SPDX-License-Identifier: Apache-2.0
#include "base/create_once.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/digest.h"
#include "base/file_descriptor.h"
#include "base/random_number.h"
#include "base/util.h"

namespace varve::internal {

TemporaryFile::TemporaryFile(const std::filesystem::path& folder) {
  path_ = folder / (std::string(kTemporaryPrefix) + Hex16(RandomNumber()));
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  error_ = fd_ < 0 ? errno : 0;
}

TemporaryFile::~TemporaryFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!is_renamed_) ::unlink(path_.c_str());
}

Status TemporaryFile::Write(std::string_view bytes) const {
  if (fd_ < 0) return ErrnoStatus("create", path_, error_);
  return WriteAll(fd_, AsBytes(bytes), path_);
}

Status TemporaryFile::Sync() const {
  return ::fdatasync(fd_) == 0 ? Status::Ok() : ErrnoStatus("sync", path_, errno);
}

Status TemporaryFile::RenameTo(const std::filesystem::path& path) {
  if (::rename(path_.c_str(), path.c_str()) != 0) return ErrnoStatus("rename", path, errno);
  is_renamed_ = true;
  return Status::Ok();
}

uint64_t TemporaryFile::NumLinks() const {
  struct stat info {};
  return ::fstat(fd_, &info) == 0 ? info.st_nlink : 0;
}

Result<CreateOutcome> CreateOnce(const std::filesystem::path& path, std::string_view bytes) {
  const TemporaryFile file(path.parent_path());
  VARVE_RETURN_IF_ERROR(file.Write(bytes));
  // When many try at once, most learn here that they are late, before they have made the disk work.
  if (::access(path.c_str(), F_OK) == 0) return CreateOutcome::kExists;
  VARVE_RETURN_IF_ERROR(file.Sync());
  const int error = ::link(file.path().c_str(), path.c_str()) == 0 ? 0 : errno;
  const uint64_t links = file.NumLinks();
  if (error == 0 || links == 2) {
    return SyncFolder(path.parent_path()).ok() ? CreateOutcome::kOk : CreateOutcome::kUnknown;
  }
  if (error == EEXIST) return CreateOutcome::kExists;
  // Another process has removed the temporary file as debris.
  if (links == 0) return CreateOutcome::kUnknown;
  return ErrnoStatus("link", path, error);
}

namespace {

Status TryReplace(const std::filesystem::path& path, std::string_view bytes, bool durable) {
  TemporaryFile file(path.parent_path());
  VARVE_RETURN_IF_ERROR(file.Write(bytes));
  if (durable) VARVE_RETURN_IF_ERROR(file.Sync());
  VARVE_RETURN_IF_ERROR(file.RenameTo(path));
  return durable ? SyncFolder(path.parent_path()) : Status::Ok();
}

}  // namespace

Status ReplaceFile(const std::filesystem::path& path, std::string_view bytes, bool durable) {
  constexpr int kMaxAttempts = 100;  // one is lost for each time that debris is removed
  Status status;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    status = TryReplace(path, bytes, durable);
    if (status.code() != StatusCode::kNotFound) return status;
    std::error_code error;
    const bool is_new = std::filesystem::create_directory(path.parent_path(), error);
    if (error) return ErrnoStatus("create", path.parent_path(), error.value());
    if (is_new || durable) VARVE_RETURN_IF_ERROR(SyncFolder(path.parent_path().parent_path()));
  }
  return status;
}

}  // namespace varve::internal
