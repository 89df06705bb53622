// SPDX-License-Identifier: Apache-2.0
#include "store/database.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "store/commit_file_system.h"

namespace varve {
namespace {

// One name for one folder: RocksDB's lock knows by name what this process holds, and the system's lock
// would not keep this process from taking it twice.
std::filesystem::path DbPath(const std::filesystem::path& store) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(store, error);
  return (error ? store : canonical) / "db";
}

// All table files stay open (a reader must keep what the writer unlinks), so the soft limit of
// descriptors, often 1,024, is raised as far as this process may.
void RaiseDescriptorLimit() {
  struct rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // best effort: the old limit may well do
}

// The process that holds RocksDB's lock, or 0.
pid_t LockHolder(const std::filesystem::path& store) {
  const int fd = ::open((DbPath(store) / "LOCK").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool held = ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(fd);
  return held ? lock.l_pid : 0;
}

// kLocked when RocksDB refused because of its lock, ok otherwise.
Status CheckLock(const rocksdb::Status& status, const std::filesystem::path& store) {
  const std::string text = status.ToString();
  const std::string message = "the store in " + store.string() + " is locked: it is open for writing";
  // Looking for the holder would close a descriptor of the lock file, and with it drop the lock of
  // this process: never look when it is ours.
  if (text.find("lock hold by current process") != std::string::npos) {
    return Status::Locked(message + " elsewhere in this process");
  }
  if (text.find("While lock file") == std::string::npos) return Status::Ok();
  const pid_t holder = LockHolder(store);
  if (holder <= 0) return Status::Locked(message + " in another process");
  return Status::Locked(message + " in process " + std::to_string(holder));
}

// RocksDB starts a log at every open and, as nothing is ever flushed, keeps the old ones: empty files,
// one an open. An empty log that is not the newest says nothing, so it goes.
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

// A database that was there does not open. When one of the files is lost that name all others, this is
// damage, whatever RocksDB makes of it.
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
  return Status::Corruption(lost.string() + " is missing, without which no file of the database can be "
                            "found; put it back, or take the store from a backup");
}

// Ours in the order of Family, then those that we do not know: they must be opened, too.
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

}  // namespace

Result<std::unique_ptr<DatabaseLock>> DatabaseLock::Take(const std::filesystem::path& path) {
  rocksdb::FileLock* lock = nullptr;
  const rocksdb::Status status =
      rocksdb::Env::Default()->LockFile((DbPath(path) / "LOCK").string(), &lock);
  VARVE_RETURN_IF_ERROR(CheckLock(status, path));
  std::error_code ignored;
  if (!status.ok() && !std::filesystem::exists(DbPath(path), ignored)) return OpenError(status, path);
  if (!status.ok()) return FromRocksDb(status, "locking the database in " + path.string());
  return std::unique_ptr<DatabaseLock>(new DatabaseLock(lock));
}

DatabaseLock::~DatabaseLock() {
  rocksdb::Env::Default()->UnlockFile(lock_).PermitUncheckedError();
}

Database::~Database() {
  if (db_ == nullptr) return;
  for (auto* handle : handles_) db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  for (auto* handle : other_handles_) db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  db_->Close().PermitUncheckedError();  // all that matters was synced by its commit
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
  // One write through the log before anything is ingested: in a database that only ever ingested,
  // a snapshot at sequence number 0 makes compaction drop live keys.
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
  VARVE_RETURN_IF_ERROR(database->Open(path, /*for_writing=*/true));
  return database;
}

Result<std::unique_ptr<Database>> Database::OpenForReading(const std::filesystem::path& path) {
  // The writer may roll its manifest or remove a file between our looking and opening it.
  Status last;
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::unique_ptr<Database> database(new Database);
    last = database->Open(path, /*for_writing=*/false);
    if (last.ok()) return database;
    ::usleep(1000 << std::min(attempt, 5));
  }
  return last;
}

Result<Database::TableFiles> Database::FindTableFiles(const std::filesystem::path& path) {
  const rocksdb::DBOptions options = MakeDbOptions();
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

Status Database::Open(const std::filesystem::path& path, bool for_writing) {
  RaiseDescriptorLimit();
  for_writing_ = for_writing;
  filter_ = std::make_shared<DeadChunkFilterFactory>();
  db_options_ = MakeDbOptions();
  family_options_ = MakeFamilyOptions(filter_);
  const std::string db_path = DbPath(path).string();
  if (for_writing) {
    env_ = rocksdb::NewCompositeEnv(
        std::make_shared<CommitFileSystem>(rocksdb::FileSystem::Default(), db_path));
    db_options_.env = env_.get();
  }

  VARVE_ASSIGN_OR_RETURN(const auto families, FindFamilies(path, db_options_, family_options_));
  rocksdb::Status status;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  if (for_writing) {
    status = rocksdb::DB::Open(db_options_, db_path, families, &handles, &raw);
    VARVE_RETURN_IF_ERROR(CheckLock(status, path));
  } else {
    // The second path is for RocksDB's log, which we replaced; nothing is written there.
    status = rocksdb::DB::OpenAsSecondary(db_options_, db_path, db_path, families, &handles, &raw);
  }
  if (!status.ok()) return OpenError(status, path);
  db_.reset(raw);
  handles_.assign(handles.begin(), handles.begin() + kNumFamilies);
  other_handles_.assign(handles.begin() + kNumFamilies, handles.end());
  if (for_writing) RemoveEmptyLogs(path);
  return Status::Ok();
}

rocksdb::Options Database::FileOptions(Family family) const {
  return {db_options_, family_options_[static_cast<size_t>(family)]};
}

Result<std::optional<std::string>> Database::Get(Family family, std::string_view key) const {
  std::string value;
  const rocksdb::Status status =
      db_->Get(rocksdb::ReadOptions(), handle(family), {key.data(), key.size()}, &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  if (!status.ok()) {
    return FromRocksDb(status, "reading family " +
                                   std::string(kFamilyNames[static_cast<int>(family)]));
  }
  return std::optional<std::string>(std::move(value));
}

Status Database::GetFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) const {
  rocksdb::ReadOptions options;
  options.verify_checksums = false;
  frame->Reset();
  const rocksdb::Status status =
      db_->Get(options, handle(Family::kChunks), keys::Chunk(address), frame);
  if (status.ok()) return Status::Ok();
  return FromRocksDb(status, "reading frame " + std::to_string(address.birth) + "/" +
                                 std::to_string(address.ordinal));
}

Status Database::Scan(Family family, std::string_view prefix, const Visit& visit) const {
  const std::string end = keys::PrefixEnd(prefix);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options;
  if (!end.empty()) options.iterate_upper_bound = &bound;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options, handle(family)));
  for (it->Seek({prefix.data(), prefix.size()}); it->Valid(); it->Next()) {
    VARVE_RETURN_IF_ERROR(
        visit({it->key().data(), it->key().size()}, {it->value().data(), it->value().size()}));
  }
  return FromRocksDb(it->status(), "scanning family " +
                                       std::string(kFamilyNames[static_cast<int>(family)]));
}

Status Database::CatchUp() const {
  if (for_writing_) return Status::Ok();
  const std::lock_guard lock(catch_up_mutex_);
  return FromRocksDb(db_->TryCatchUpWithPrimary(), "catching up with the writer");
}

void Database::AwaitCatchUp() const { const std::lock_guard lock(catch_up_mutex_); }

Status Database::Resume() const {
  // RocksDB may be resuming by itself at this very moment, which takes it a little.
  rocksdb::Status status = db_->Resume();
  for (int i = 0; status.IsBusy() && i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    status = db_->Resume();
  }
  return FromRocksDb(status, "resuming after a full disk");
}

}  // namespace varve
