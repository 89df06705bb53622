// SPDX-License-Identifier: Apache-2.0
//
// How a database is made and opened: to write, to read, or in another file system.
#include <rocksdb/listener.h>

#include <algorithm>
#include <string>

#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/guarded.h"
#include "base/util.h"
#include "store/db/commit_file_system.h"
#include "store/db/database.h"
#include "store/db/database_lock.h"
#include "store/db/frame_file_system.h"
#include "store/db/manifest_file_system.h"
#include "store/db/manifest_note.h"
#include "store/db/manifest_tables.h"
#include "store/db/save_ids.h"
#include "store/db/seal_guard.h"
#include "store/db/sealed_manifest.h"
#include "store/db/writer_files.h"

namespace varve::internal {

namespace {

// RocksDB starts a log at every open. Nothing is ever flushed, so it keeps the old logs: one empty
// file for each open. An empty log that is not the newest says nothing, so it is removed.
void RemoveEmptyLogs(const std::filesystem::path& store) {
  std::error_code error;
  std::vector<std::filesystem::path> logs;
  for (const auto& entry : EntriesOf(DbPath(store), &error)) {
    if (entry.path().extension() == ".log") logs.push_back(entry.path());
  }
  std::sort(logs.begin(), logs.end(), [](const auto& a, const auto& b) {  // names are numbers
    const std::string x = a.filename(), y = b.filename();
    return x.size() != y.size() ? x.size() < y.size() : x < y;
  });
  for (size_t i = 0; i + 1 < logs.size(); ++i) {
    if (std::filesystem::file_size(logs[i], error) == 0) std::filesystem::remove(logs[i], error);
  }
}

// Notes an error of RocksDB from which it may not recover.
class FailureListener : public rocksdb::EventListener {
 public:
  explicit FailureListener(std::atomic<bool>* failed) : failed_(failed) {}
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status*) override {
    *failed_ = true;
  }

  // RocksDB's own recovery, which a full disk would start, may keep Close waiting for ever.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;  // Heal does that
  }

 private:
  std::atomic<bool>* const failed_;
};

}  // namespace

Result<std::unique_ptr<Database>> Database::Create(const std::filesystem::path& path,
                                                   std::shared_ptr<const Sealer> sealer) {
  std::unique_ptr<Database> database(new Database);
  if (sealer != nullptr) database->guard_ = std::make_shared<SealGuard>(std::move(sealer));
  database->Prepare(path, /*for_writing=*/true);
  const rocksdb::Status status = database->Make();
  if (!status.ok()) return FromRocksDb(status, "creating the database in " + path.string());
  return database;
}

// RocksDB could make missing families as it opens. But then it writes all options anew, and reads
// them again, for each family.
rocksdb::Status Database::Make() {
  const rocksdb::ColumnFamilyDescriptor unused("default", family_options_[0]);
  for (int i = 0; i < kNumFamilies; ++i) {
    families_.emplace_back(std::string(kFamilyNames[i]), family_options_[static_cast<size_t>(i)]);
  }
  rocksdb::DBOptions options = db_options_;
  options.create_if_missing = true;
  options.error_if_exists = true;
  const auto make = [&](std::vector<rocksdb::ColumnFamilyHandle*>* handles, rocksdb::DB** db) {
    rocksdb::Status made =
        rocksdb::DB::Open(options, DbPath(path_).string(), {unused}, handles, db);
    if (!made.ok()) return made;
    std::vector<rocksdb::ColumnFamilyHandle*> ours;
    made = (*db)->CreateColumnFamilies(families_, &ours);
    handles->insert(handles->begin(), ours.begin(), ours.end());
    return made;
  };
  rocksdb::Status status = OpenRocksDb::OpenToWrite(make, &open_);
  families_.push_back(unused);
  if (!status.ok()) return status;
  // Writes once through the log before anything is ingested. In a database that has only ever
  // ingested, a snapshot at sequence number 0 would make compaction drop live keys.
  rocksdb::WriteOptions sync;
  sync.sync = true;
  auto* meta = handle(Family::kMeta);
  status = open_->db()->Put(sync, meta, {keys::kNextBirth.data(), keys::kNextBirth.size()},
                            EncodeNumber(kFirstSaveId + kSaveBlock));
  return status.ok() ? open_->db()->Flush(rocksdb::FlushOptions(), meta) : status;
}

Result<std::unique_ptr<Database>> Database::OpenForWriting(const std::filesystem::path& path,
                                                           std::shared_ptr<const Sealer> sealer) {
  std::unique_ptr<Database> database(new Database);
  if (sealer != nullptr) database->guard_ = std::make_shared<SealGuard>(std::move(sealer));
  VARVE_RETURN_IF_ERROR(Guarded("opening the database in " + path.string(),
                                [&] { return database->Open(path, /*for_writing=*/true); }));
  return database;
}

Result<std::unique_ptr<Database>> Database::OpenForReading(const std::filesystem::path& path) {
  // The writer may roll its manifest or remove a file between our looking and opening it.
  Status last;
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::unique_ptr<Database> database(new Database);
    last = Guarded("opening the database in " + path.string(),
                   [&] { return database->Open(path, /*for_writing=*/false); });
    if (last.ok()) return database;
    ::usleep(1000 << std::min(attempt, 5));
  }
  return last;
}

Result<std::unique_ptr<Database>> Database::OpenFrozen(
    const std::filesystem::path& path, const std::shared_ptr<rocksdb::FileSystem>& file_system) {
  std::unique_ptr<Database> database(new Database);
  database->path_ = path;
  VARVE_RETURN_IF_ERROR(Guarded("opening the database in " + path.string(),
                                [&] { return database->OpenReadOnly(file_system); }));
  return database;
}

Status Database::OpenReadOnly(const std::shared_ptr<rocksdb::FileSystem>& file_system) {
  constexpr int kOpenTables = 1000;  // fewer than all, or RocksDB would open all of them now
  const std::string what = "opening the database in " + path_.string();
  is_frozen_ = true;
  filter_ = std::make_shared<DeadChunkFilterFactory>();
  db_options_ = MakeDbOptions();
  db_options_.max_open_files = kOpenTables;
  db_options_.skip_checking_sst_file_sizes_on_db_open = true;
  family_options_ = MakeFamilyOptions(filter_);
  env_ = rocksdb::NewCompositeEnv(std::make_shared<FrameFileSystem>(file_system));
  db_options_.env = env_.get();
  const std::string db_path = DbPath(path_).string();
  std::vector<std::string> names;
  rocksdb::Status status = rocksdb::DB::ListColumnFamilies(db_options_, db_path, &names);
  if (!status.ok()) return FromRocksDb(status, what);
  families_ = FamiliesOf(names, family_options_);
  status = OpenRocksDb::Open(
      [&](auto* handles, auto** db) {
        return rocksdb::DB::OpenForReadOnly(db_options_, db_path, families_, handles, db);
      },
      &open_);
  return FromRocksDb(status, what);
}

// Takes the lock first, because another writer changes the manifest and its seal.
Status Database::VerifySeal() {
  if (guard_ == nullptr) return Status::Ok();
  rocksdb::FileLock* lock = nullptr;
  const std::string name = (DbPath(path_) / "LOCK").string();
  const rocksdb::Status locked = file_system_->LockFile(name, {}, &lock, nullptr);
  VARVE_RETURN_IF_ERROR(CheckLock(locked, path_));
  if (!locked.ok()) return OpenError(locked, path_);
  VARVE_ASSIGN_OR_RETURN(const SealedState state, PrepareSealedState(path_, *guard_->sealer()));
  const auto tables = DecodeManifest(state.log);
  if (!tables.has_value()) return UnknownRecord(state.manifest);
  guard_->Begin(*tables);
  file_system_->BeginServing(state);
  return Status::Ok();
}

Status Database::OpenWriter() {
  struct Serving {
    ~Serving() { files->EndServing(); }
    CommitFileSystem* files;
  } const serving{file_system_.get()};
  VARVE_RETURN_IF_ERROR(VerifySeal());
  const rocksdb::Status status = OpenRocksDb::OpenToWrite(
      [this](auto* handles, auto** db) {
        return rocksdb::DB::Open(db_options_, DbPath(path_).string(), families_, handles, db);
      },
      &open_);
  VARVE_RETURN_IF_ERROR(CheckLock(status, path_));
  if (!status.ok()) return OpenError(status, path_, families_);
  RemoveEmptyLogs(path_);
  return Status::Ok();
}

void Database::Prepare(const std::filesystem::path& path, bool for_writing) {
  for_writing_ = for_writing;
  path_ = path;
  filter_ = std::make_shared<DeadChunkFilterFactory>();
  db_options_ = MakeDbOptionsOf(path);
  family_options_ = MakeFamilyOptions(filter_);
  const auto frames = std::make_shared<FrameFileSystem>(std::make_shared<ManifestFileSystem>());
  if (for_writing) {
    file_system_ = std::make_shared<CommitFileSystem>(frames, DbPath(path).string(), guard_);
    env_ = rocksdb::NewCompositeEnv(file_system_);
    db_options_.listeners.push_back(std::make_shared<FailureListener>(&failed_));
    db_options_.max_bgerror_resume_count = 0;  // Heal does that
    if (guard_ != nullptr) {
      db_options_.file_checksum_gen_factory = guard_->sealer()->TagsOfTables();
      db_options_.listeners.push_back(std::make_shared<SealListener>(guard_, &failed_));
    }
  } else {
    env_ = rocksdb::NewCompositeEnv(frames);
  }
  db_options_.env = env_.get();
}

Status Database::Open(const std::filesystem::path& path, bool for_writing) {
  Prepare(path, for_writing);
  // RocksDB would abort, or call it an error that may pass.
  for (const char* name : {"IDENTITY", "LOCK"}) {
    VARVE_RETURN_IF_ERROR(CheckIsFile(DbPath(path) / name));
  }
  if (for_writing) VARVE_RETURN_IF_ERROR(CheckDbHasNoLinks(path));
  VARVE_RETURN_IF_ERROR(CheckManifestLength(path));
  VARVE_ASSIGN_OR_RETURN(families_, FindFamilies(path, db_options_, family_options_));
  if (for_writing) return OpenWriter();
  return OpenReader();
}

}  // namespace varve::internal
