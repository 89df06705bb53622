// SPDX-License-Identifier: Apache-2.0
//
// RocksDB's file system with fewer syncs a commit. An ingest of files for seven families syncs each
// file a second time and the folder once a family. Each sync waits for the disk. Here a file is
// synced once, by its writer. The folder is synced once, just before the manifest learns of the new
// files. So data and names are still durable before the record that points to them.
//
// A record of the manifest whose write or sync failed may or may not be on the disk. RocksDB
// assumes that it is not and deletes the files that it names. If it is, nobody could open the
// database afterwards. So after such an error nothing is deleted until the database has been closed
// and read again.
//
// When RocksDB opens a table of a commit, the table's first and last block are read and verified
// before, because RocksDB does not look at errors there (table_ends.h). After each sync of the
// manifest its length is noted (manifest_note.h).
//
// In a sealed store, the manifest is sealed before it grows (sealed_manifest.h), RocksDB opens the
// very manifest that was verified, logs of RocksDB are empty for who reads them, and tables are
// compared with their tags (seal_guard.h).
//
// The lock of the database is held from its first opening until this object is destroyed. So nobody
// else can take it while the database is closed and opened again. Thread-safe.
#pragma once

#include <rocksdb/file_system.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "store/db/manifest_note.h"
#include "store/db/seal_guard.h"
#include "store/db/sealed_manifest.h"

namespace varve::internal {

class CommitFileSystem : public rocksdb::FileSystemWrapper {
 public:
  // `db_path` is the one folder of the database, which lies in the store.
  // Without a guard the store is not sealed.
  CommitFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base, std::string db_path,
                   std::shared_ptr<SealGuard> guard = nullptr)
      : FileSystemWrapper(base),
        db_path_(std::move(db_path)),
        guard_(std::move(guard)),
        manifest_note_(std::filesystem::path(db_path_).parent_path()) {}
  ~CommitFileSystem() override;

  static const char* kClassName() { return "varve.CommitFileSystem"; }
  const char* Name() const override { return kClassName(); }

  // An ingest reopens a file only to sync it again. It skips that on the error "not supported".
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* result,
                                       rocksdb::IODebugContext* debug) override;
  // Varve writes no log, so whatever a log of a sealed store holds was written by somebody else.
  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override;
  // For a folder, the sync for new files waits for the manifest.
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* result,
                                 rocksdb::IODebugContext* debug) override;
  // A manifest syncs the folder before it grows.
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  // Hides how much space is left. After one error for lack of space, RocksDB refuses each
  // compaction whose whole input would not fit on the disk. But rewriting a chunk file needs space
  // only for its live part, so the disk itself shall decide.
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options,
                                 uint64_t* free_bytes, rocksdb::IODebugContext* debug) override;

  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  // This is how CURRENT is replaced.
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus LockFile(const std::string& name, const rocksdb::IOOptions& options,
                             rocksdb::FileLock** lock, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus UnlockFile(rocksdb::FileLock* lock, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;

  // True after an error that leaves the content of the manifest unknown.
  bool in_doubt() const { return in_doubt_; }
  // Call it when the database is closed. What is read from then on is known.
  void EndDoubt() { in_doubt_ = false; }
  // Notes whether a status leaves doubt, and returns it.
  rocksdb::IOStatus NoteDoubt(rocksdb::IOStatus status) {
    if (!status.ok()) in_doubt_ = true;
    return status;
  }

  ManifestNote* manifest_note() { return &manifest_note_; }

  // While RocksDB opens the database, it reads the verified manifest from memory, and a CURRENT
  // that names it. So nobody can exchange them after they were verified.
  void BeginServing(const SealedState& state);
  void EndServing();

  void DeferFolderSync() { folder_sync_pending_ = true; }
  rocksdb::IOStatus SyncFolderIfPending();

 private:
  const std::string db_path_;
  const std::shared_ptr<SealGuard> guard_;  // null: the store is not sealed
  ManifestNote manifest_note_;
  std::atomic<bool> folder_sync_pending_{false};
  std::atomic<bool> in_doubt_{false};
  std::mutex served_mutex_;
  std::map<std::string, std::string> served_;  // by path. Guarded by served_mutex_
  std::mutex lock_mutex_;
  rocksdb::FileLock* lock_ = nullptr;  // guarded by lock_mutex_
};

}  // namespace varve::internal
