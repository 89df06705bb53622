// SPDX-License-Identifier: Apache-2.0
#include "store/db/database_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/file_descriptor.h"
#include "base/util.h"
#include "store/db/rocksdb_options.h"
#include "store/db/table_files.h"

namespace varve::internal {

namespace {

// The process that holds RocksDB's lock, or 0.
pid_t LockHolder(const std::filesystem::path& store) {
  const int fd = ::open((DbPath(store) / "LOCK").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return 0;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool held = ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(fd);
  return held ? lock.l_pid : 0;
}

}  // namespace

Status CheckLock(const rocksdb::Status& status, const std::filesystem::path& store) {
  const std::string text = status.ToString();
  const std::string message =
      "the store in " + store.string() + " is locked: it is open for writing";
  // Looking for the holder would close a descriptor of the lock file, and with it release the lock
  // of this process. So it never looks when the lock is ours.
  if (text.find("lock hold by current process") != std::string::npos) {
    return Status::Locked(message + " elsewhere in this process");
  }
  if (text.find("While lock file") == std::string::npos) return Status::Ok();
  const pid_t holder = LockHolder(store);
  if (holder <= 0) return Status::Locked(message + " in another process");
  return Status::Locked(message + " in process " + std::to_string(holder));
}

Result<std::unique_ptr<DatabaseLock>> DatabaseLock::Take(const std::filesystem::path& path) {
  // RocksDB would make the file that a link names.
  VARVE_RETURN_IF_ERROR(CheckDbIsNoLink(path));
  VARVE_RETURN_IF_ERROR(CheckIsNoLink(DbPath(path) / "LOCK"));
  rocksdb::FileLock* lock = nullptr;
  const rocksdb::Status status =
      rocksdb::Env::Default()->LockFile((DbPath(path) / "LOCK").string(), &lock);
  VARVE_RETURN_IF_ERROR(CheckLock(status, path));
  std::error_code ignored;
  if (!status.ok() && !std::filesystem::exists(DbPath(path), ignored))
    return OpenError(status, path);
  if (!status.ok()) return FromRocksDb(status, "locking the database in " + path.string());
  return std::unique_ptr<DatabaseLock>(new DatabaseLock(lock));
}

DatabaseLock::~DatabaseLock() { rocksdb::Env::Default()->UnlockFile(lock_).PermitUncheckedError(); }

}  // namespace varve::internal
