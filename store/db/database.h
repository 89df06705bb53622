// SPDX-License-Identifier: Apache-2.0
//
// The RocksDB of one store: opening it as the writer or beside one, and reading from its families.
// Everything written goes through CommitBatch. Thread rule: any thread.
#pragma once

#include <rocksdb/db.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/db/rocksdb_options.h"
#include "store/format/keys.h"
#include "varve/result.h"

namespace varve {

class CommitFileSystem;

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
  // Opens beside a writer: no lock, no write, files that the writer removes stay readable. Where a
  // table file is missing, cut or not to be opened, all that does not need it can be read, and what
  // needs it is kCorruption with the name of the file.
  static Result<std::unique_ptr<Database>> OpenForReading(const std::filesystem::path& path);

  // The table files of the database in `path`/db, which nobody changes meanwhile, and their bytes.
  // Fails unless every one is there and has its size.
  struct TableFiles {
    std::set<std::string> names;
    uint64_t bytes = 0;
  };
  static Result<TableFiles> FindTableFiles(const std::filesystem::path& path);
  // Reads a whole table file. kCorruption unless all its blocks have their checksums.
  static Status VerifyTableFile(const std::filesystem::path& file);

  // A table file that the manifest names and that is not there as the manifest says.
  struct LostTable {
    std::string family;
    std::string file;  // its name in `db`: 000012.sst
    std::string what;  // a sentence that names the file and what is wrong with it
  };
  // Every lost table file of the newest state. Files in `sound` are not looked at. What a writer
  // removes meanwhile is not lost.
  Result<std::vector<LostTable>> FindLostTables(const std::set<std::string>& sound = {}) const;

  bool for_writing() const { return for_writing_; }

  // While it lives, the database is not closed to be opened again. A thread may hold several.
  class Use {
   public:
    explicit Use(const Database* database);
    Use(Use&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use();

   private:
    const Database* database_;
  };
  // For what reads. An error when the database could not be opened again after a failed write.
  Result<Use> BeginRead() const;
  // For what writes: after an earlier error, opens the database again first. The thread holds no
  // other Use. Writers only.
  Result<Use> BeginWrite();
  // After an error of RocksDB: closes the database and opens it again, as RocksDB itself does not
  // recover from all of them; without such an error, nothing. When that fails, what is there can
  // still be read, and the next call tries again. The thread holds no Use. Writers only.
  Status Heal();
  // True when Heal has something to do, and waits until nobody uses the database.
  bool has_failed() const;
  // True when the database has the table file that was ingested by a hard link to `path`.
  bool HasIngested(const std::filesystem::path& path) const;

  // These are only used while a Use is held.
  rocksdb::DB* rocksdb() const { return db_.get(); }
  rocksdb::ColumnFamilyHandle* handle(Family family) const {
    return handles_[static_cast<size_t>(family)];
  }
  // Options of an SST file that is to be ingested into the family.
  rocksdb::Options FileOptions(Family family) const;
  DeadChunkFilterFactory* dead_chunk_filter() const { return filter_.get(); }

  // nullopt = no such key.
  Result<std::optional<std::string>> Get(Family family, std::string_view key) const;
  // The frame at an address, without a copy where RocksDB allows it. kNotFound when it is not
  // there. Table checksums are not verified: the digest of the chunk is.
  Status GetFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) const;

  // Calls `visit(key, value)` for every key with the prefix, in order, until it fails.
  using Visit = std::function<Status(std::string_view key, std::string_view value)>;
  Status Scan(Family family, std::string_view prefix, const Visit& visit) const {
    return ScanFrom(family, prefix, prefix, visit);
  }
  // The same from the key `first` on, which need not be there.
  Status ScanFrom(Family family, std::string_view prefix, std::string_view first,
                  const Visit& visit) const;

  // The first key with the prefix that is not less than `first`; nullopt = there is none.
  Result<std::optional<std::string>> FirstKeyFrom(Family family, std::string_view prefix,
                                                  std::string_view first) const;
  // The last key with the prefix; nullopt = there is none.
  Result<std::optional<std::string>> LastKey(Family family, std::string_view prefix) const {
    return LastKeyBefore(family, prefix, keys::PrefixEnd(prefix));
  }
  // The last of them that is less than `end`; empty = of all.
  Result<std::optional<std::string>> LastKeyBefore(Family family, std::string_view prefix,
                                                   std::string_view end) const;

  // Readers: sees what the writer has committed by now. Serialised. Writers: nothing.
  Status CatchUp() const;
  // Writers: makes these tables visible, all or none. RocksDB may show them one family after the
  // other.
  rocksdb::Status Ingest(const std::vector<rocksdb::IngestExternalFileArg>& args);
  // Returns when neither a catch-up nor an ingest is under way: both bring the families up to date
  // one after the other, so what one family has of them, all have from then on.
  void AwaitCommits() const;
  // Counts the beginnings and the ends of ingests, of readers those of catch-ups: when it is even,
  // and the same before and after a read, the read saw one state.
  uint64_t num_ingest_events() const { return ingest_events_; }

  // For tests: ingests in the place of RocksDB; and how many threads wait in AwaitCommits.
  using IngestFunction =
      std::function<rocksdb::Status(const std::vector<rocksdb::IngestExternalFileArg>&)>;
  void set_ingest_for_test(IngestFunction ingest) { ingest_for_test_ = std::move(ingest); }
  int num_waiting_for_test() const { return num_waiting_; }

 private:
  Database() = default;
  Status Open(const std::filesystem::path& path, bool for_writing);
  Result<std::vector<rocksdb::LiveFileMetaData>> ReadManifest() const;
  Status FindLost();
  Status OpenDespite();
  Status OpenWriter();
  void RemoveUnnamedTables() const;
  void Close();
  void Adopt(rocksdb::DB* db, const std::vector<rocksdb::ColumnFamilyHandle*>& handles);
  Status NoteLost() const;
  std::string LostOf(Family family) const;
  Status ReadError(Family family, const rocksdb::Status& status, const std::string& what) const;
  Status CheckNotStale(Family family, const std::string& what) const;

  // Constant after opening.
  bool for_writing_ = false;
  bool despite_lost_ = false;   // readers: opened although tables are lost; does not catch up
  std::filesystem::path path_;  // of the store
  std::vector<rocksdb::ColumnFamilyDescriptor> families_;
  std::shared_ptr<CommitFileSystem> file_system_;  // writers only
  std::unique_ptr<rocksdb::Env> env_;              // over file_system_; writers only
  std::shared_ptr<DeadChunkFilterFactory> filter_;
  rocksdb::DBOptions db_options_;
  std::vector<rocksdb::ColumnFamilyOptions> family_options_;

  // Writers: changed by Heal while nobody uses them. Readers: constant after opening.
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;        // ours, in the order of Family
  std::vector<rocksdb::ColumnFamilyHandle*> other_handles_;  // "default", and of newer versions
  Status closed_;                                            // why db_ is null

  mutable std::mutex use_mutex_;  // held while the database is opened again
  mutable std::condition_variable unused_;
  mutable int uses_ = 0;             // guarded by use_mutex_
  std::atomic<bool> failed_{false};  // RocksDB has met an error: Heal has something to do

  mutable std::mutex catch_up_mutex_;
  mutable std::string manifest_seen_;  // as it was when lost tables were looked for; guarded by it
  mutable std::mutex lost_mutex_;
  mutable std::vector<LostTable> lost_;  // guarded by lost_mutex_
  // Some were lost after opening: their families stay as they were before.
  mutable std::atomic<bool> stale_{false};
  mutable std::mutex ingest_mutex_;
  mutable std::atomic<uint64_t> ingest_events_{0};
  mutable std::atomic<int> num_waiting_{0};
  IngestFunction ingest_for_test_;
};

}  // namespace varve
