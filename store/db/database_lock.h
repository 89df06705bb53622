// SPDX-License-Identifier: Apache-2.0
//
// RocksDB's lock of a store, of which one process at a time has a writer.
#pragma once

#include <rocksdb/env.h>

#include <filesystem>
#include <memory>

#include "varve/result.h"

namespace varve::internal {

// Keeps every writer out of the database of a store while it lives.
class DatabaseLock {
 public:
  // kLocked as Database::OpenForWriting. The folder `path`/db must exist.
  static Result<std::unique_ptr<DatabaseLock>> Take(const std::filesystem::path& path);
  DatabaseLock(const DatabaseLock&) = delete;
  DatabaseLock& operator=(const DatabaseLock&) = delete;
  ~DatabaseLock();

 private:
  explicit DatabaseLock(rocksdb::FileLock* lock) : lock_(lock) {}
  rocksdb::FileLock* const lock_;
};

// Returns kLocked when RocksDB refused the store in `path` because of its lock, and ok otherwise.
// The message names the other process when the system knows it.
Status CheckLock(const rocksdb::Status& status, const std::filesystem::path& path);

}  // namespace varve::internal
