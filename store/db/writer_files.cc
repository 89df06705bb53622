// SPDX-License-Identifier: Apache-2.0
#include "store/db/writer_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <string>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/util.h"
#include "store/db/table_files.h"
#include "store/format/group_file.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kReserveBytes = uint64_t{8} << 20;

fs::path IncomingOf(const fs::path& store) { return store / "incoming"; }

// The members of a group on one host share one reserve. Many ranks may need it at a time, but that
// is no reason to keep space for all.
fs::path ReserveOf(const fs::path& store) {
  const fs::path root = RootOfMember(store);
  if (root.empty()) return store / "RESERVE";
  char host[HOST_NAME_MAX + 1] = {};
  const bool is_known = ::gethostname(host, sizeof(host) - 1) == 0;
  return root / (std::string("RESERVE.") + (is_known ? host : "unknown"));
}

bool IsFullFolder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error)) && !fs::is_empty(path, error) && !error;
}

Status CheckIncoming(const fs::path& incoming) {
  VARVE_RETURN_IF_ERROR(CheckIsNoLink(incoming));
  std::error_code error;
  const fs::file_status status = fs::symlink_status(incoming, error);
  if (status.type() == fs::file_type::not_found) return Status::Ok();
  if (status.type() != fs::file_type::directory) {
    return Status::IOError(incoming.string() + " is no folder. Move it away");
  }
  const auto entries = EntriesOf(incoming, &error);
  if (error) return Status::IOError("cannot list " + incoming.string() + ": " + error.message());
  for (const fs::directory_entry& entry : entries) {
    if (IsFullFolder(entry.path())) {  // varve makes no folder here
      return Status::FailedPrecondition(entry.path().string() + " is a folder, expected none. " +
                                        "Move it away");
    }
  }
  return Status::Ok();
}

Status CheckReserve(const fs::path& reserve) {
  if (!IsFullFolder(reserve)) return Status::Ok();
  return Status::IOError(reserve.string() + " is a folder, expected a file. Move it away");
}

}  // namespace

Status CheckDbHasNoLinks(const fs::path& store) {
  VARVE_RETURN_IF_ERROR(CheckDbIsNoLink(store));
  VARVE_RETURN_IF_ERROR(CheckIsNoLink(DbPath(store) / "LOCK"));
  std::error_code ignored;  // opening says why
  for (const fs::directory_entry& entry : EntriesOf(DbPath(store), &ignored)) {
    if (entry.path().extension() == ".log") VARVE_RETURN_IF_ERROR(CheckIsNoLink(entry.path()));
  }
  return Status::Ok();
}

// Leftovers of a crash may be hard links to committed files. So they are unlinked before anything
// is written, and no name is ever opened twice.
Status ClearIncoming(const fs::path& store) {
  const fs::path incoming = IncomingOf(store);
  VARVE_RETURN_IF_ERROR(CheckIncoming(incoming));
  std::error_code error, listed;
  fs::create_directory(incoming, error);
  for (const fs::directory_entry& entry : EntriesOf(incoming, &listed)) {
    fs::remove(entry.path(), error);
    if (error) break;
  }
  if (!error) error = listed;
  if (!error) return Status::Ok();
  return Status::IOError("cannot clear " + incoming.string() + ": " + error.message());
}

Status EnsureReserve(const fs::path& store) {
  const fs::path path = ReserveOf(store), own = store / "RESERVE";
  if (path != own) ::unlink(own.c_str());  // made when each member had one
  VARVE_RETURN_IF_ERROR(CheckReserve(path));
  struct stat info {};
  const bool is_there = ::lstat(path.c_str(), &info) == 0;
  if (is_there && !S_ISREG(info.st_mode)) {
    std::error_code error;  // then it cannot be made
    fs::remove(path, error);
  } else if (is_there && static_cast<uint64_t>(info.st_blocks) * 512 >= kReserveBytes) {
    return Status::Ok();
  }
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = ::open(path.c_str(), kFlags, 0644);
  if (fd < 0) return ErrnoStatus("create", path, errno);
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(kReserveBytes));
  ::close(fd);
  if (error == 0) return Status::Ok();
  ::unlink(path.c_str());
  return ErrnoStatus("reserve space in", path, error);
}

void ReleaseReserve(const fs::path& store) {
  ::unlink(ReserveOf(store).c_str());
  ::unlink((store / "RESERVE").c_str());  // of a member that was made when each had one
}

std::vector<Status> FindWhatAWriterRefuses(const fs::path& store) {
  std::vector<Status> refused;
  for (const Status& status : {CheckDbHasNoLinks(store), CheckIncoming(IncomingOf(store)),
                               CheckReserve(ReserveOf(store))}) {
    if (!status.ok()) refused.push_back(status);
  }
  return refused;
}

}  // namespace varve::internal
