// SPDX-License-Identifier: Apache-2.0
#include "store/db/database.h"

#include <fcntl.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_reader.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/guarded.h"
#include "base/util.h"
#include "store/db/commit_file_system.h"
#include "store/db/manifest_note.h"

namespace varve::internal {

namespace {

// Returns one name for one folder. RocksDB's lock knows by name what this process holds, and the
// system's lock would not keep this process from taking it twice.
std::filesystem::path DbPath(const std::filesystem::path& store) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(store, error);
  return (error ? store : canonical) / "db";
}

size_t CountFiles(const std::filesystem::path& folder) {
  std::error_code error;  // then as few as can be found
  size_t num_files = 0;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    ++num_files;
  }
  return num_files;
}

// All table files stay open, because a reader must keep what the writer unlinks. So the soft limit
// of descriptors, often 1,024, is raised as far as this process may.
void RaiseDescriptorLimit() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // best effort: the old limit may well do
}

// The process that holds RocksDB's lock, or 0.
pid_t LockHolder(const std::filesystem::path& store) {
  const int fd = ::open((DbPath(store) / "LOCK").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool held = ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(fd);
  return held ? lock.l_pid : 0;
}

// kLocked when RocksDB refused because of its lock, ok otherwise.
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

// RocksDB starts a log at every open. Nothing is ever flushed, so it keeps the old logs: one empty
// file for each open. An empty log that is not the newest says nothing, so it is removed.
void RemoveEmptyLogs(const std::filesystem::path& store) {
  std::error_code error;
  std::vector<std::filesystem::path> logs;
  for (const auto& entry : std::filesystem::directory_iterator(DbPath(store), error)) {
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

// An existing database does not open. If CURRENT or the manifest that it names is lost, this is
// damage, whatever RocksDB calls it.
Status OpenError(const rocksdb::Status& status, const std::filesystem::path& store) {
  const std::filesystem::path db = DbPath(store);
  std::filesystem::path lost;
  std::error_code ignored;
  if (!std::filesystem::exists(db, ignored)) {
    lost = db;
  } else if (!std::filesystem::exists(db / "CURRENT", ignored)) {
    lost = db / "CURRENT";
  } else {
    std::ifstream current(db / "CURRENT");
    std::string manifest;
    std::getline(current, manifest);
    const bool is_name = manifest.starts_with("MANIFEST-") && manifest.find('/') == manifest.npos;
    if (is_name && !std::filesystem::exists(db / manifest, ignored)) lost = db / manifest;
  }
  if (lost.empty()) return FromRocksDb(status, "opening the database in " + store.string());
  return Status::Corruption(lost.string() +
                            " is missing, without which no file of the database can be "
                            "found; put it back, or take the store from a backup");
}

// About a table file, RocksDB may name the expected size as the real one, another file, or none. So
// this looks at the files.
Status OpenError(const rocksdb::Status& status, const std::filesystem::path& store,
                 const Database& database) {
  constexpr size_t kMaxNamed = 3;
  if (!status.IsCorruption()) return OpenError(status, store);
  const auto lost = database.FindLostTables();
  if (!lost.ok() || lost->empty()) return OpenError(status, store);
  std::string all;
  for (size_t i = 0; i < std::min(lost->size(), kMaxNamed); ++i) {
    all += (i > 0 ? "; " : "") + (*lost)[i].what;
  }
  if (lost->size() > kMaxNamed) {
    all += "; and " + std::to_string(lost->size() - kMaxNamed) + " more";
  }
  return Status::Corruption("opening the database in " + store.string() + ": " + all);
}

// Our families in the order of Family, then unknown ones, which must be opened, too.
Result<std::vector<rocksdb::ColumnFamilyDescriptor>> FindFamilies(
    const std::filesystem::path& store, const rocksdb::DBOptions& db_options,
    const std::vector<rocksdb::ColumnFamilyOptions>& family_options) {
  std::vector<std::string> names;
  const rocksdb::Status status =
      rocksdb::DB::ListColumnFamilies(db_options, DbPath(store).string(), &names);
  if (!status.ok()) return OpenError(status, store);
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (int i = 0; i < kNumFamilies; ++i) {
    families.emplace_back(std::string(kFamilyNames[i]), family_options[static_cast<size_t>(i)]);
  }
  for (const std::string& name : names) {
    if (std::find(std::begin(kFamilyNames), std::end(kFamilyNames), name) == std::end(kFamilyNames))
      families.emplace_back(name, family_options[0]);
  }
  return families;
}

// Says what is wrong with a table file that should have `bytes`. Empty = it opens.
std::string WhatAilsTable(const std::filesystem::path& file, uint64_t bytes) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) {
    return errno == ENOENT ? "is missing, expected " + std::to_string(bytes) + " bytes"
                           : std::string("cannot be looked at: ") + std::strerror(errno);
  }
  if (static_cast<uint64_t>(info.st_size) != bytes) {
    return "has " + std::to_string(info.st_size) + " bytes, expected " + std::to_string(bytes);
  }
  rocksdb::Options options;
  options.info_log = MakeDbOptions().info_log;
  const rocksdb::Status status = rocksdb::SstFileReader(options).Open(file.string());
  return status.ok() ? "" : "cannot be opened: " + status.ToString();
}

// Changes whenever the manifest does.
Result<std::string> ManifestStamp(const std::filesystem::path& store) {
  constexpr size_t kMaxBytes = 256;
  const std::filesystem::path db = DbPath(store);
  VARVE_ASSIGN_OR_RETURN(const std::string current, ReadSmallFile(db / "CURRENT", kMaxBytes));
  const std::filesystem::path manifest = db / current.substr(0, current.find('\n'));
  struct stat info {};
  if (::stat(manifest.c_str(), &info) != 0) return ErrnoStatus("look at", manifest, errno);
  return current + std::to_string(info.st_size);
}

// The same beside a writer. A writer removes a manifest once CURRENT names the next one.
Result<std::string> AwaitManifestStamp(const std::filesystem::path& store) {
  constexpr int kAttempts = 6;
  Result<std::string> stamp = ManifestStamp(store);
  for (int attempt = 0; attempt < kAttempts && !stamp.ok(); ++attempt) {
    ::usleep(1000 << attempt);
    stamp = ManifestStamp(store);
  }
  if (stamp.status().code() != StatusCode::kNotFound) return stamp;
  return OpenError(rocksdb::Status::Corruption(stamp.status().message()), store);
}

std::set<std::string> NamesOf(const std::vector<rocksdb::LiveFileMetaData>& files) {
  std::set<std::string> names;
  for (const auto& file : files) names.insert(std::filesystem::path(file.name).filename());
  return names;
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

Result<std::unique_ptr<DatabaseLock>> DatabaseLock::Take(const std::filesystem::path& path) {
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

Database::~Database() { Close(); }

void Database::Close() {
  if (db_ == nullptr) return;
  for (auto* handle : handles_) db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  for (auto* handle : other_handles_) db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  handles_.clear();
  other_handles_.clear();
  db_->Close().PermitUncheckedError();  // all that matters was synced by its commit
  db_.reset();
}

void Database::Adopt(rocksdb::DB* db, const std::vector<rocksdb::ColumnFamilyHandle*>& handles) {
  db_.reset(db);
  handles_.assign(handles.begin(), handles.begin() + kNumFamilies);
  other_handles_.assign(handles.begin() + kNumFamilies, handles.end());
}

Status Database::Create(const std::filesystem::path& path) {
  rocksdb::DBOptions db_options = MakeDbOptions();
  db_options.create_if_missing = true;
  db_options.create_missing_column_families = true;
  db_options.error_if_exists = true;
  const auto family_options = MakeFamilyOptions(nullptr);
  std::vector<rocksdb::ColumnFamilyDescriptor> families = {{"default", family_options[0]}};
  for (int i = 0; i < kNumFamilies; ++i) {
    families.emplace_back(std::string(kFamilyNames[i]), family_options[static_cast<size_t>(i)]);
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status =
      rocksdb::DB::Open(db_options, DbPath(path).string(), families, &handles, &raw);
  if (!status.ok()) return FromRocksDb(status, "creating the database in " + path.string());
  const std::unique_ptr<rocksdb::DB> db(raw);
  // Writes once through the log before anything is ingested. In a database that has only ever
  // ingested, a snapshot at sequence number 0 would make compaction drop live keys.
  rocksdb::WriteOptions sync;
  sync.sync = true;
  auto* meta = handles[1 + static_cast<size_t>(Family::kMeta)];
  status = db->Put(sync, meta, {keys::kNextBirth.data(), keys::kNextBirth.size()}, EncodeNumber(1));
  if (status.ok()) status = db->Flush(rocksdb::FlushOptions(), meta);
  for (auto* handle : handles) db->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  if (status.ok()) status = db->Close();
  return FromRocksDb(status, "creating the database in " + path.string());
}

Result<std::unique_ptr<Database>> Database::OpenForWriting(const std::filesystem::path& path) {
  std::unique_ptr<Database> database(new Database);
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

Status Database::VerifyTableFile(const std::filesystem::path& file) {
  rocksdb::Options options;
  options.info_log = MakeDbOptions().info_log;
  rocksdb::SstFileReader reader(options);
  rocksdb::Status status = reader.Open(file.string());
  if (status.ok()) status = reader.VerifyChecksum();
  return FromRocksDb(status, "verifying " + file.string());
}

Result<Database::TableFiles> Database::FindTableFiles(const std::filesystem::path& path) {
  RaiseDescriptorLimit();
  const rocksdb::DBOptions options = MakeDbOptions(CountFiles(DbPath(path)));
  VARVE_ASSIGN_OR_RETURN(const auto families,
                         FindFamilies(path, options, MakeFamilyOptions(nullptr)));
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::OpenForReadOnly(options, DbPath(path).string(), families, &handles, &raw);
  if (!status.ok()) return OpenError(status, path);
  const std::unique_ptr<rocksdb::DB> db(raw);
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  for (auto* handle : handles) db->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  TableFiles found;
  for (const rocksdb::LiveFileMetaData& file : files) {
    found.names.insert(std::filesystem::path(file.name).filename());
    found.bytes += file.size;
  }
  return found;
}

// All that ReadManifest needs.
Status Database::FindManifest(const std::filesystem::path& path) {
  path_ = path;
  VARVE_ASSIGN_OR_RETURN(families_,
                         FindFamilies(path, MakeDbOptions(), MakeFamilyOptions(nullptr)));
  return Status::Ok();
}

Result<std::set<std::string>> Database::FindTableNames(const std::filesystem::path& path) {
  Database database;
  VARVE_RETURN_IF_ERROR(database.FindManifest(path));
  VARVE_ASSIGN_OR_RETURN(const auto files, database.ReadManifest());
  return NamesOf(files);
}

Result<std::vector<Database::LostTable>> Database::FindLostTablesOf(
    const std::filesystem::path& path) {
  Database database;
  VARVE_RETURN_IF_ERROR(database.FindManifest(path));
  return database.FindLostTables();
}

// Returns everything that the newest manifest names, even if it is missing.
Result<std::vector<rocksdb::LiveFileMetaData>> Database::ReadManifest() const {
  rocksdb::DBOptions options = MakeDbOptions();
  options.paranoid_checks = false;  // or lost files are an error
  options.max_open_files = 20;      // the least there is: no table is needed
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status;
  // The writer may roll its manifest between our looking and opening it.
  for (int attempt = 0; attempt < 20; ++attempt) {
    status =
        rocksdb::DB::OpenForReadOnly(options, DbPath(path_).string(), families_, &handles, &raw);
    if (status.ok()) break;
    ::usleep(1000 << std::min(attempt, 5));
  }
  if (!status.ok()) return FromRocksDb(status, "reading the manifest of " + path_.string());
  const std::unique_ptr<rocksdb::DB> db(raw);
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  for (auto* handle : handles) db->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  return files;
}

Result<std::vector<Database::LostTable>> Database::FindLostTables(
    const std::set<std::string>& sound) const {
  VARVE_ASSIGN_OR_RETURN(const auto files, ReadManifest());
  std::vector<LostTable> lost;
  for (const rocksdb::LiveFileMetaData& file : files) {
    const std::string name = std::filesystem::path(file.name).filename();
    if (sound.contains(name)) continue;
    const std::filesystem::path full = DbPath(path_) / name;
    const std::string what = WhatAilsTable(full, file.size);
    if (what.empty()) continue;
    lost.push_back(
        {file.column_family_name, name,
         "table file " + full.string() + " of family " + file.column_family_name + " " + what});
  }
  if (lost.empty()) return lost;
  // A writer removes a file only after the manifest has ceased to name it.
  VARVE_ASSIGN_OR_RETURN(const auto now, ReadManifest());
  const std::set<std::string> names = NamesOf(now);
  std::erase_if(lost, [&](const LostTable& table) { return !names.contains(table.file); });
  return lost;
}

// When a family lacks a file, RocksDB shows an older state of it, or none, without an error.
Status Database::FindLost() {
  constexpr int kMaxAttempts = 10;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const Result<std::string> stamp = ManifestStamp(path_);
    manifest_seen_ = stamp.ok() ? *stamp : "";
    VARVE_ASSIGN_OR_RETURN(const auto named, ReadManifest());
    std::vector<rocksdb::LiveFileMetaData> seen;
    db_->GetLiveFilesMetaData(&seen);
    const std::set<std::string> sound = NamesOf(seen), all = NamesOf(named);
    if (std::includes(sound.begin(), sound.end(), all.begin(), all.end())) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(lost_, FindLostTables(sound));
    if (!lost_.empty()) {
      despite_lost_ = true;
      return OpenDespite();
    }
    // The writer was faster.
    VARVE_RETURN_IF_ERROR(FromRocksDb(db_->TryCatchUpWithPrimary(), "catching up with the writer"));
  }
  return Status::Ok();
}

// Opens the newest state for reading, with all files that exist.
Status Database::OpenDespite() {
  Close();
  rocksdb::DBOptions options = db_options_;
  options.paranoid_checks = false;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::OpenForReadOnly(options, DbPath(path_).string(), families_, &handles, &raw);
  if (!status.ok()) return OpenError(status, path_);
  Adopt(raw, handles);
  return Status::Ok();
}

Status Database::OpenWriter() {
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(db_options_, DbPath(path_).string(), families_, &handles, &raw);
  VARVE_RETURN_IF_ERROR(CheckLock(status, path_));
  if (!status.ok()) return OpenError(status, path_, *this);
  Adopt(raw, handles);
  RemoveEmptyLogs(path_);
  return Status::Ok();
}

// Finds what has been lost since the open. Call it under catch_up_mutex_.
Status Database::NoteLost() const {
  VARVE_ASSIGN_OR_RETURN(std::string stamp, AwaitManifestStamp(path_));
  if (stamp == manifest_seen_) return Status::Ok();
  if (despite_lost_) {  // what it shows is old in every family
    stale_ = true;
    return Status::Ok();
  }
  std::vector<rocksdb::LiveFileMetaData> seen;
  db_->GetLiveFilesMetaData(&seen);
  VARVE_ASSIGN_OR_RETURN(std::vector<LostTable> lost, FindLostTables(NamesOf(seen)));
  manifest_seen_ = std::move(stamp);
  const std::lock_guard lock(lost_mutex_);
  stale_ = !lost.empty();
  lost_ = std::move(lost);
  return Status::Ok();
}

// Says which files of a family are lost. Empty = none.
std::string Database::LostOf(Family family) const {
  constexpr int kMaxNamed = 3;
  const std::lock_guard lock(lost_mutex_);
  std::string all;
  int named = 0;
  for (const LostTable& table : lost_) {
    if (table.family != kFamilyNames[static_cast<int>(family)]) continue;
    if (++named > kMaxNamed) return all + "; and more";
    all += (all.empty() ? "" : "; ") + table.what;
  }
  return all;
}

Status Database::ReadError(Family family, const rocksdb::Status& status,
                           const std::string& what) const {
  const std::string lost = LostOf(family);
  return lost.empty() ? FromRocksDb(status, what) : Status::Corruption(what + ": " + lost);
}

// An answer from a family that cannot follow the writer would be out of date.
Status Database::CheckNotStale(Family family, const std::string& what) const {
  if (!stale_) return Status::Ok();
  if (despite_lost_) {
    const std::lock_guard lock(lost_mutex_);
    return Status::Corruption(what + ": " + lost_.front().what +
                              ", and the store has changed since it was opened; open it again");
  }
  return ReadError(family, rocksdb::Status::OK(), what);
}

Status Database::Open(const std::filesystem::path& path, bool for_writing) {
  RaiseDescriptorLimit();
  for_writing_ = for_writing;
  path_ = path;
  filter_ = std::make_shared<DeadChunkFilterFactory>();
  db_options_ = MakeDbOptions(CountFiles(DbPath(path)));
  family_options_ = MakeFamilyOptions(filter_);
  const std::string db_path = DbPath(path).string();
  if (for_writing) {
    file_system_ = std::make_shared<CommitFileSystem>(rocksdb::FileSystem::Default(), db_path);
    env_ = rocksdb::NewCompositeEnv(file_system_);
    db_options_.env = env_.get();
    db_options_.listeners.push_back(std::make_shared<FailureListener>(&failed_));
    db_options_.max_bgerror_resume_count = 0;  // Heal does that
  }
  VARVE_RETURN_IF_ERROR(CheckManifestLength(path));
  VARVE_ASSIGN_OR_RETURN(families_, FindFamilies(path, db_options_, family_options_));
  if (for_writing) return OpenWriter();
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  // The second path is for RocksDB's log, which we replaced. Nothing is written there.
  const rocksdb::Status status =
      rocksdb::DB::OpenAsSecondary(db_options_, db_path, db_path, families_, &handles, &raw);
  if (!status.ok()) return OpenError(status, path, *this);
  Adopt(raw, handles);
  return FindLost();
}

Database::Use::Use(const Database* database) : database_(database) {
  const std::lock_guard lock(database_->use_mutex_);
  ++database_->uses_;
}

Database::Use::~Use() {
  if (database_ == nullptr) return;
  const std::lock_guard lock(database_->use_mutex_);
  if (--database_->uses_ == 0) database_->unused_.notify_all();
}

Result<Database::Use> Database::BeginRead() const {
  Use use(this);
  if (db_ == nullptr) return closed_;
  return use;
}

Result<Database::Use> Database::BeginWrite() {
  VARVE_RETURN_IF_ERROR(Heal());
  return BeginRead();
}

bool Database::has_failed() const {
  return failed_ || (file_system_ != nullptr && file_system_->in_doubt());
}

Status Database::Heal() {
  if (!has_failed()) return Status::Ok();
  // After an error RocksDB starts no compaction, so a thread that waits for one would never stop.
  rocksdb::DB* stopped = nullptr;
  {
    const Use use(this);
    stopped = db_.get();
    if (stopped != nullptr) stopped->DisableManualCompaction();
  }
  std::unique_lock lock(use_mutex_);
  unused_.wait(lock, [&] { return uses_ == 0; });
  if (!has_failed()) {  // another thread did it
    if (stopped != nullptr && db_.get() == stopped) stopped->EnableManualCompaction();
    return Status::Ok();
  }
  Close();
  file_system_->EndDoubt();
  failed_ = false;
  closed_ = OpenWriter();
  if (IsNoSpace(closed_)) {
    RemoveUnnamedTables();
    closed_ = OpenWriter();
  }
  if (closed_.ok()) return Status::Ok();
  failed_ = true;
  const Status reason = closed_;
  const Status reading = OpenDespite();
  if (!reading.ok()) closed_ = reading;
  return reason.WithContext("opening the store again after an error");
}

// Runs while the database is closed. On a full disk, the files of a failed rewrite are the room for
// the next manifest.
void Database::RemoveUnnamedTables() const {
  const auto files = ReadManifest();
  if (!files.ok()) return;
  const std::set<std::string> names = NamesOf(*files);
  std::error_code ignored;
  for (auto it = std::filesystem::directory_iterator(DbPath(path_), ignored);
       !ignored && it != std::filesystem::directory_iterator(); it.increment(ignored)) {
    const std::filesystem::path& file = it->path();
    if (file.extension() != ".sst" || names.contains(file.filename())) continue;
    std::error_code failed;
    std::filesystem::remove(file, failed);
  }
}

bool Database::HasIngested(const std::filesystem::path& path) const {
  struct stat source {
  }, table{};
  const Result<Use> use = BeginRead();
  if (!use.ok() || ::stat(path.c_str(), &source) != 0) return false;
  std::vector<rocksdb::LiveFileMetaData> files;
  db_->GetLiveFilesMetaData(&files);
  for (const std::string& name : NamesOf(files)) {
    if (::stat((DbPath(path_) / name).c_str(), &table) == 0 && table.st_ino == source.st_ino &&
        table.st_dev == source.st_dev) {
      return true;
    }
  }
  return false;
}

rocksdb::Options Database::FileOptions(Family family) const {
  rocksdb::Options options(db_options_, family_options_[static_cast<size_t>(family)]);
  options.bytes_per_sync = 8 << 20;  // starts write-back early, so that the final sync is short
  options.strict_bytes_per_sync = false;
  return options;
}

Result<std::optional<std::string>> Database::Get(Family family, std::string_view key) const {
  const std::string what = "reading family " + std::string(kFamilyNames[static_cast<int>(family)]);
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  VARVE_RETURN_IF_ERROR(CheckNotStale(family, what));
  std::string value;
  const rocksdb::Status status =
      db_->Get(rocksdb::ReadOptions(), handle(family), {key.data(), key.size()}, &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  if (!status.ok()) return ReadError(family, status, what);
  return std::optional<std::string>(std::move(value));
}

Status Database::GetFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) const {
  rocksdb::ReadOptions options;
  options.verify_checksums = false;
  frame->Reset();
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  const rocksdb::Status status =
      db_->Get(options, handle(Family::kChunks), keys::Chunk(address), frame);
  if (status.ok()) return Status::Ok();
  const std::string what =
      "reading frame " + std::to_string(address.save_id) + "/" + std::to_string(address.ordinal);
  if (status.IsNotFound()) VARVE_RETURN_IF_ERROR(CheckNotStale(Family::kChunks, what));
  return status.IsNotFound() ? FromRocksDb(status, what) : ReadError(Family::kChunks, status, what);
}

Status Database::ScanFrom(Family family, std::string_view prefix, std::string_view first,
                          const Visit& visit) const {
  const std::string what = "scanning family " + std::string(kFamilyNames[static_cast<int>(family)]);
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  VARVE_RETURN_IF_ERROR(CheckNotStale(family, what));
  const std::string end = keys::PrefixEnd(prefix);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options;
  if (!end.empty()) options.iterate_upper_bound = &bound;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options, handle(family)));
  for (it->Seek({first.data(), first.size()}); it->Valid(); it->Next()) {
    VARVE_RETURN_IF_ERROR(
        visit({it->key().data(), it->key().size()}, {it->value().data(), it->value().size()}));
  }
  if (it->status().ok()) return Status::Ok();
  return ReadError(family, it->status(), what);
}

Result<std::optional<std::string>> Database::FirstKeyFrom(Family family, std::string_view prefix,
                                                          std::string_view first) const {
  const std::string what =
      "searching family " + std::string(kFamilyNames[static_cast<int>(family)]);
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  VARVE_RETURN_IF_ERROR(CheckNotStale(family, what));
  const std::unique_ptr<rocksdb::Iterator> it(
      db_->NewIterator(rocksdb::ReadOptions(), handle(family)));
  it->Seek({first.data(), first.size()});
  if (!it->Valid()) {
    if (!it->status().ok()) return ReadError(family, it->status(), what);
    return std::optional<std::string>();
  }
  if (!it->key().starts_with({prefix.data(), prefix.size()})) return std::optional<std::string>();
  return std::optional(it->key().ToString());
}

Result<std::optional<std::string>> Database::LastKeyBefore(Family family, std::string_view prefix,
                                                           std::string_view end) const {
  const std::string what =
      "searching family " + std::string(kFamilyNames[static_cast<int>(family)]);
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  VARVE_RETURN_IF_ERROR(CheckNotStale(family, what));
  const std::unique_ptr<rocksdb::Iterator> it(
      db_->NewIterator(rocksdb::ReadOptions(), handle(family)));
  if (end.empty()) {
    it->SeekToLast();
  } else {
    const rocksdb::Slice bound(end.data(), end.size());
    it->SeekForPrev(bound);
    if (it->Valid() && it->key() == bound) it->Prev();
  }
  if (!it->status().ok()) return ReadError(family, it->status(), what);
  if (!it->Valid() || !it->key().starts_with({prefix.data(), prefix.size()})) {
    return std::optional<std::string>();
  }
  return std::optional<std::string>(it->key().ToString());
}

Status Database::CatchUp() const {
  if (for_writing_) return Status::Ok();
  const std::lock_guard lock(catch_up_mutex_);
  // RocksDB would look for the missing file again and again, without an end.
  VARVE_RETURN_IF_ERROR(AwaitManifestStamp(path_).status());
  if (!despite_lost_) {
    ++ingest_events_;
    const rocksdb::Status status = db_->TryCatchUpWithPrimary();
    ++ingest_events_;
    VARVE_RETURN_IF_ERROR(FromRocksDb(status, "catching up with the writer"));
  }
  return NoteLost();
}

rocksdb::Status Database::Ingest(const std::vector<rocksdb::IngestExternalFileArg>& args) {
  const std::lock_guard lock(ingest_mutex_);
  ++ingest_events_;
  rocksdb::Status status =
      ingest_for_test_ ? ingest_for_test_(args) : db_->IngestExternalFiles(args);
  ++ingest_events_;
  return status;
}

void Database::AwaitCommits() const {
  ++num_waiting_;
  { const std::lock_guard lock(catch_up_mutex_); }
  { const std::lock_guard lock(ingest_mutex_); }
  --num_waiting_;
}

}  // namespace varve::internal
