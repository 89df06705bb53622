// SPDX-License-Identifier: Apache-2.0
//
// The RocksDB of one store: opening it as the writer or beside one, and reading from its families.
// Everything written goes through CommitBatch. Thread rule: any thread.
#pragma once

#include <rocksdb/db.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/keys.h"
#include "store/rocksdb_options.h"
#include "varve/result.h"

namespace varve {

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

class Database {
 public:
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  // Makes the database in `path`/db and closes it again.
  static Status Create(const std::filesystem::path& path);
  // Opens as the only writer. kLocked names the other process when the system knows it.
  static Result<std::unique_ptr<Database>> OpenForWriting(const std::filesystem::path& path);
  // Opens beside a writer: no lock, no write, files that the writer removes stay readable.
  static Result<std::unique_ptr<Database>> OpenForReading(const std::filesystem::path& path);

  // The table files of the database in `path`/db, which nobody changes meanwhile, and their bytes.
  // Fails unless every one is there and has its size; OpenForReading makes do with an older state of
  // the families that lack one.
  struct TableFiles {
    std::set<std::string> names;
    uint64_t bytes = 0;
  };
  static Result<TableFiles> FindTableFiles(const std::filesystem::path& path);

  bool for_writing() const { return for_writing_; }
  rocksdb::DB* rocksdb() const { return db_.get(); }
  rocksdb::ColumnFamilyHandle* handle(Family family) const {
    return handles_[static_cast<size_t>(family)];
  }
  // Options of an SST file that is to be ingested into the family.
  rocksdb::Options FileOptions(Family family) const;
  DeadChunkFilterFactory* dead_chunk_filter() const { return filter_.get(); }

  // nullopt = no such key.
  Result<std::optional<std::string>> Get(Family family, std::string_view key) const;
  // The frame at an address, without a copy where RocksDB allows it. kNotFound when it is not there.
  // Table checksums are not verified: the digest of the chunk is.
  Status GetFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) const;

  // Calls `visit(key, value)` for every key with the prefix, in order, until it fails.
  using Visit = std::function<Status(std::string_view key, std::string_view value)>;
  Status Scan(Family family, std::string_view prefix, const Visit& visit) const;

  // Readers: sees what the writer has committed by now. Serialised. Writers: nothing.
  Status CatchUp() const;
  // Writers: makes these tables visible, all or none. RocksDB may show them one family after the other.
  rocksdb::Status Ingest(const std::vector<rocksdb::IngestExternalFileArg>& args);
  // Returns when neither a catch-up nor an ingest is under way: both bring the families up to date one
  // after the other, so what one family has of them, all have from then on.
  void AwaitCommits() const;
  // Counts the beginnings and the ends of ingests: when it is even, and the same before and after a
  // read, the read saw one state.
  uint64_t num_ingest_events() const { return ingest_events_; }

  // For tests: ingests in the place of RocksDB; and how many threads wait in AwaitCommits.
  using IngestFunction =
      std::function<rocksdb::Status(const std::vector<rocksdb::IngestExternalFileArg>&)>;
  void set_ingest_for_test(IngestFunction ingest) { ingest_for_test_ = std::move(ingest); }
  int num_waiting_for_test() const { return num_waiting_; }

  // Writers: leaves the read-only state that a full disk puts RocksDB into.
  Status Resume() const;

 private:
  Database() = default;
  Status Open(const std::filesystem::path& path, bool for_writing);

  // Constant after opening.
  bool for_writing_ = false;
  std::unique_ptr<rocksdb::Env> env_;  // over CommitFileSystem; writers only
  std::shared_ptr<DeadChunkFilterFactory> filter_;
  rocksdb::DBOptions db_options_;
  std::vector<rocksdb::ColumnFamilyOptions> family_options_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;        // ours, in the order of Family
  std::vector<rocksdb::ColumnFamilyHandle*> other_handles_;  // "default", and of newer versions

  mutable std::mutex catch_up_mutex_;
  mutable std::mutex ingest_mutex_;
  std::atomic<uint64_t> ingest_events_{0};
  mutable std::atomic<int> num_waiting_{0};
  IngestFunction ingest_for_test_;
};

}  // namespace varve
