// SPDX-License-Identifier: Apache-2.0
//
// The RocksDB of one store. It is opened for writing, or for reading while another
// process may write. It is read family by family.
// All writing goes through CommitBatch. Thread rule: any thread.
#pragma once

#include <rocksdb/db.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/db/open_rocksdb.h"
#include "store/db/rocksdb_options.h"
#include "store/db/table_files.h"
#include "store/format/keys.h"
#include "varve/result.h"

namespace varve::internal {

class CommitFileSystem;
class Sealer;
class SealGuard;

// Counts the start and the end of a change.
class CountsChange {
 public:
  explicit CountsChange(std::atomic<uint64_t>* events) : events_(events) { ++*events_; }
  CountsChange(const CountsChange&) = delete;
  CountsChange& operator=(const CountsChange&) = delete;
  ~CountsChange() { ++*events_; }

 private:
  std::atomic<uint64_t>* const events_;
};

class Database {
 public:
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  // Makes the database in `path`/db, and opens it as the only writer. The caller syncs the folder.
  // With a sealer, it is that of a sealed store.
  static Result<std::unique_ptr<Database>> Create(const std::filesystem::path& path,
                                                  std::shared_ptr<const Sealer> sealer = nullptr);
  // Opens as the only writer. kLocked names the other process when the system knows it. With a
  // sealer, kCorruption: somebody without the key has changed the manifest.
  static Result<std::unique_ptr<Database>> OpenForWriting(
      const std::filesystem::path& path, std::shared_ptr<const Sealer> sealer = nullptr);
  // Opens for reading, also while a writer is at work. It takes no lock and writes nothing, and
  // files that the writer removes stay readable. When a table file is missing, cut or cannot be
  // opened, everything that does not need it can still be read. What needs it is kCorruption with
  // the name of the file.
  static Result<std::unique_ptr<Database>> OpenForReading(const std::filesystem::path& path);
  // Opens a database that lies in another file system than this machine's and never changes. Table
  // files are opened when they are needed.
  static Result<std::unique_ptr<Database>> OpenFrozen(
      const std::filesystem::path& path, const std::shared_ptr<rocksdb::FileSystem>& file_system);

  bool for_writing() const { return for_writing_; }
  // Returns every lost table file of the newest state.
  Result<std::vector<LostTable>> FindLostTables() const {
    if (is_frozen_) return std::vector<LostTable>();
    return internal::FindLostTables(path_, families_);
  }

  // While a Use lives, its RocksDB is not closed, and a writer's is not opened again. A reader that
  // catches up may open another RocksDB meanwhile. Later Uses get that one. So whatever RocksDB
  // returns for a Use (an iterator, say) must go before the Use, and is used with this Use's
  // RocksDB only. PinnableSlices of GetFrame may stay: the block cache holds their bytes, and all
  // that this Database opens share it. A thread may hold several.
  class Use {
   public:
    explicit Use(const Database* database);
    Use(Use&& other) noexcept
        : database_(std::exchange(other.database_, nullptr)), open_(std::move(other.open_)) {}
    Use& operator=(Use&&) = delete;
    ~Use();

    // nullptr when BeginRead would have failed.
    rocksdb::DB* rocksdb() const { return open_ == nullptr ? nullptr : open_->db(); }
    rocksdb::ColumnFamilyHandle* handle(Family family) const { return open_->handle(family); }
    const std::shared_ptr<const OpenRocksDb>& open() const { return open_; }

   private:
    const Database* database_;
    std::shared_ptr<const OpenRocksDb> open_;
  };
  // Call it before a read. When the database could not be opened again after a failed write, this
  // tries again to open it, for reading only.
  Result<Use> BeginRead() const;
  // Call it before a write. After an earlier error it first opens the database again. The calling
  // thread must hold no other Use. Writers only.
  Result<Use> BeginWrite();
  // After an error of RocksDB, closes the database and opens it again, because RocksDB itself does
  // not recover from all errors. Without such an error it does nothing. If opening fails, what is
  // there can still be read, and the next call tries again. The calling thread must hold no Use.
  // Writers only.
  Status Heal();
  // True when Heal has something to do. It waits until nobody uses the database.
  bool has_failed() const;
  // True when the database has the table file that was ingested by a hard link to `path`.
  bool HasIngested(const std::filesystem::path& path) const;

  // For tests of writers. All other code asks its Use.
  rocksdb::DB* rocksdb() const { return open_->db(); }
  rocksdb::ColumnFamilyHandle* handle(Family family) const { return open_->handle(family); }
  // Returns the table files of a family in its newest state, by their names in `db`: 000012.sst.
  // RocksDB's GetColumnFamilyMetaData is not asked: for a moment it shows an older state than
  // GetPropertiesOfTablesInRange.
  std::vector<rocksdb::LiveFileMetaData> FilesOf(Family family) const;
  // For readers: an error when that list is out of date. A table that is lost may be the reason.
  Status CheckFilesOf(Family family) const;
  // Options of an SST file that is to be ingested into the family.
  rocksdb::Options FileOptions(Family family) const;
  // Ends and syncs such a file. Ingest needs to know its tag, if the store is sealed.
  rocksdb::Status FinishTable(rocksdb::SstFileWriter* writer,
                              const std::filesystem::path& path) const;
  // Call it before these tables, by their names in `db`, are written anew. kCorruption: one of a
  // sealed store does not have its tag. Writers only.
  Status CompareTags(std::span<const std::string> names) const;
  DeadChunkFilterFactory* dead_chunk_filter() const { return filter_.get(); }

  // Returns nullopt when there is no such key.
  Result<std::optional<std::string>> Get(Family family, std::string_view key) const;
  // True: each read of a file may be a request to an object store, so frames that are needed
  // together are better read together (FetchedFrames).
  bool is_far() const { return is_frozen_; }
  // Reads frames at rising addresses, in as few reads of files as there can be. Those that cannot
  // be read are left out. GetFrame says why.
  std::map<ChunkAddress, rocksdb::PinnableSlice> GetFrames(
      std::span<const ChunkAddress> addresses) const;
  // Reads the frame at an address, without a copy where RocksDB allows it. kNotFound: there is
  // none. It leaves the bytes of the frame to the digest of the chunk (frame_file_system.h).
  Status GetFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) const;

  // Calls `visit(key, value)` for every key with the prefix, in order, until it fails.
  using Visit = std::function<Status(std::string_view key, std::string_view value)>;
  Status Scan(Family family, std::string_view prefix, const Visit& visit) const {
    return ScanFrom(family, prefix, prefix, visit);
  }
  // The same from the key `first` on. That key need not exist.
  Status ScanFrom(Family family, std::string_view prefix, std::string_view first,
                  const Visit& visit) const;

  // Returns the first key with the prefix that is not less than `first`, or nullopt.
  Result<std::optional<std::string>> FirstKeyFrom(Family family, std::string_view prefix,
                                                  std::string_view first) const;
  // Returns the last key with the prefix, or nullopt.
  Result<std::optional<std::string>> LastKey(Family family, std::string_view prefix) const {
    return LastKeyBefore(family, prefix, keys::PrefixEnd(prefix));
  }
  // Returns the last key with the prefix that is less than `end`. An empty `end` means no limit.
  Result<std::optional<std::string>> LastKeyBefore(Family family, std::string_view prefix,
                                                   std::string_view end) const;

  // A reader sees what the writer has committed by now, all of it. Families that lack a lost table,
  // or that RocksDB holds back, give errors, and no other does. After an error of this call, what
  // it shows may be out of date. Calls are serialised. For a writer it does nothing.
  Status CatchUp() const;
  // Makes these tables visible, all or none. RocksDB may show them one family after the other.
  // Writers only.
  rocksdb::Status Ingest(std::vector<rocksdb::IngestExternalFileArg> args);
  // Returns when neither a catch-up nor an ingest is under way. Both bring the families up to date
  // one after the other. So what one family shows before this call, all families show after it.
  void AwaitCommits() const;
  // Counts the starts and the ends of ingests, and of openings after an error. For a reader it
  // counts those of catch-ups. If it is even, and the same before and after a read, the read saw
  // one state.
  uint64_t num_ingest_events() const { return ingest_events_; }

  // For tests: a function that ingests instead of RocksDB, and the number of threads that wait in
  // AwaitCommits.
  using IngestFunction =
      std::function<rocksdb::Status(const std::vector<rocksdb::IngestExternalFileArg>&)>;
  void set_ingest_for_test(IngestFunction ingest) { ingest_for_test_ = std::move(ingest); }
  int num_waiting_for_test() const { return num_waiting_; }
  // For tests of readers: the first is called when the newest state was opened beside the old one.
  // The second is called each time before what is shown is compared with the manifest. Neither may
  // set another. And how often such a state has taken the old one's place.
  void set_after_open_for_test(std::function<void()> call) {
    const std::lock_guard lock(follow_mutex_);
    after_open_for_test_ = std::move(call);
  }
  void set_before_compare_for_test(std::function<void()> call) {
    const std::lock_guard lock(follow_mutex_);
    before_compare_for_test_ = std::move(call);
  }
  uint64_t num_renewals_for_test() const { return num_renewals_; }

 private:
  Database() = default;
  void Prepare(const std::filesystem::path& path, bool for_writing);
  rocksdb::Status Make();
  Status Open(const std::filesystem::path& path, bool for_writing);
  Status OpenReadOnly(const std::shared_ptr<rocksdb::FileSystem>& file_system);
  Status OpenDespite() const;
  // A state without some of its tables.
  struct Partial {
    std::unique_ptr<rocksdb::Env> env;
    std::shared_ptr<const OpenRocksDb> open;
  };
  Result<std::shared_ptr<const Partial>> OpenWithout(std::vector<LostTable> tables,
                                                     const OpenRocksDb& whole) const;
  std::vector<LostTable> FindInTheWay(Family family, std::string_view first, std::string_view end,
                                      const Use& use) const;
  std::shared_ptr<const Partial> OpenAround(Family family, std::string_view first,
                                            std::string_view end, const Use& use) const;
  void ForgetAround() const;
  Status OpenWriter();
  Status VerifySeal();
  Status AddTags(std::vector<rocksdb::IngestExternalFileArg>* args);
  Status OpenReader();
  void RemoveUnnamedTables() const;
  void Close() const { open_.reset(); }
  Result<Use> OpenAgainToRead() const;
  // What was seen of a reader's newest state.
  struct Seen {
    std::string stamp;                        // of the manifest where that state ends
    std::vector<LostTable> lost;              // which keep their families from that state
    std::map<std::string, std::string> held;  // other families that are kept from it, and why
  };
  // How the tables of a RocksDB fit the manifest.
  struct Fit {
    bool is_known = false;  // false: the writer has started another manifest meanwhile
    std::string stamp;      // of the manifest where the state ends that fits best
    std::string now;        // of the manifest that was read. Empty: it changed meanwhile
    FamilyTables behind;    // families that show other tables than that state, and what they lack
  };
  Result<std::shared_ptr<const OpenRocksDb>> OpenSecondary() const;
  Result<Fit> Compare(const FamilyTables& shown, const std::string& before) const;
  Result<std::vector<LostTable>> FindLostOf(const FamilyTables& behind, const FamilyTables& shown,
                                            bool in_place) const;
  Result<Seen> Follow(const OpenRocksDb& open, std::string before, bool in_place) const;
  Status Renew(const std::string& stamp, bool at_once) const;
  Result<std::pair<std::shared_ptr<const OpenRocksDb>, Seen>> OpenWhole(
      const std::string& stamp) const;
  Status FollowInPlace(const std::string& stamp) const;
  Status FallBehind(const Status& why) const;
  bool AnswersUnlessLost() const;
  void Note(Seen seen) const;
  struct Range {
    std::string_view first, end;  // an empty end: to the last key
  };
  std::string LostOf(Family family) const;
  std::string LostIn(Family family, const Range& range) const;
  Status CheckRange(Family family, const Range& range, const std::string& what) const;
  const OpenRocksDb& PlaceOf(Family family, std::string_view key, const Use& use) const;
  const OpenRocksDb& SoundPlaceOf(Family family, const Use& use) const;
  Status ReadError(Family family, const rocksdb::Status& status, const std::string& what,
                   const Range& range) const;
  Status CheckNotStale(Family family, const std::string& what) const;
  template <typename Read>
  Status ReadOneState(Family family, const std::string& what, const Read& read) const;
  struct Reading {
    Use use;
    std::shared_ptr<const Partial> partial;
    std::unique_ptr<rocksdb::Iterator> at;  // goes first
  };
  using Seek = std::function<void(rocksdb::Iterator*)>;
  Result<Reading> BeginScan(Family family, const std::string& what,
                            const rocksdb::ReadOptions& options, const Range& range,
                            const Seek& seek) const;

  // Constant after opening.
  bool for_writing_ = false;
  bool is_frozen_ = false;      // opened by OpenFrozen
  bool despite_lost_ = false;   // readers: opened although tables are lost, so it does not catch up
  std::filesystem::path path_;  // path of the store
  Families families_;
  std::shared_ptr<SealGuard> guard_;               // for writers of a sealed store only
  std::shared_ptr<CommitFileSystem> file_system_;  // for writers only
  std::unique_ptr<rocksdb::Env> env_;              // over file_system_ or a FrameFileSystem
  // For a reader that was opened although tables of records are lost: the same state without them.
  // Null: there is no such state.
  std::shared_ptr<const Partial> sound_;
  std::shared_ptr<DeadChunkFilterFactory> filter_;
  rocksdb::DBOptions db_options_;
  std::vector<rocksdb::ColumnFamilyOptions> family_options_;

  // Null when it could not be opened again. A writer's Heal changes it while nobody uses the
  // database. A reader's CatchUp changes it at any time. Guarded by use_mutex_. While nobody else
  // can change it, it is also read without.
  mutable std::shared_ptr<const OpenRocksDb> open_;
  mutable Status closed_;  // why open_ is null. Guarded by use_mutex_

  mutable std::mutex use_mutex_;  // held while the database is opened again
  mutable std::condition_variable unused_;
  mutable int uses_ = 0;             // guarded by use_mutex_
  std::atomic<bool> failed_{false};  // RocksDB has met an error: Heal has something to do

  mutable std::mutex follow_mutex_;      // held throughout a CatchUp. Guards what follows
  mutable std::string manifest_opened_;  // name of the newest manifest before open_ was opened
  mutable std::string manifest_seen_;    // stamp of the manifest whose state is shown
  mutable std::chrono::steady_clock::time_point renew_after_;  // not before
  mutable std::string renewed_at_;                             // stamp at the last attempt to renew
  mutable Status renewed_;                                     // of that attempt
  mutable std::mutex catch_up_mutex_;  // held while what a reader shows changes
  mutable std::mutex lost_mutex_;
  mutable std::vector<LostTable> lost_;  // guarded by lost_mutex_
  // Families that RocksDB holds back although no table of theirs is lost, and why. Guarded by
  // lost_mutex_.
  mutable std::map<std::string, std::string> held_;
  // Not OK when some families may show a newer state than others. Guarded by lost_mutex_.
  mutable Status behind_;
  // True when lost_, held_ or behind_ says why some families stay as they were, or all may.
  mutable std::atomic<bool> stale_{false};
  mutable std::mutex around_mutex_;
  mutable std::shared_ptr<const Partial>
      around_;  // the last of OpenAround. Guarded by around_mutex_
  mutable std::mutex ingest_mutex_;
  mutable std::atomic<uint64_t> ingest_events_{0};
  mutable std::atomic<int> num_waiting_{0};
  mutable std::mutex tags_mutex_;
  // The tags of tables of a sealed store that were written and not yet ingested, by path. Guarded
  // by tags_mutex_.
  mutable std::map<std::string, std::string> tags_;
  IngestFunction ingest_for_test_;
  std::function<void()> after_open_for_test_, before_compare_for_test_;  // by follow_mutex_
  mutable std::atomic<uint64_t> num_renewals_{0};
};

}  // namespace varve::internal
