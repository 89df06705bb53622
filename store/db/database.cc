// SPDX-License-Identifier: Apache-2.0
#include "store/db/database.h"

#include <rocksdb/cache.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/guarded.h"
#include "base/util.h"
#include "store/db/commit_file_system.h"
#include "store/db/database_lock.h"
#include "store/db/frame_file_system.h"
#include "store/db/manifest_file_system.h"
#include "store/db/manifest_note.h"
#include "store/db/manifest_tables.h"
#include "store/db/save_ids.h"
#include "store/db/seal_guard.h"
#include "store/db/sealed_manifest.h"
#include "store/db/sound_tables.h"

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

// Lets all blocks of frames go from the cache but those that somebody reads now.
void ForgetBlocks(const Database::Use& use) {
  const rocksdb::Options options = use.rocksdb()->GetOptions(use.handle(Family::kChunks));
  const auto* const table = options.table_factory->GetOptions<rocksdb::BlockBasedTableOptions>();
  table->block_cache->EraseUnRefEntries();
}

}  // namespace

OpenRocksDb::~OpenRocksDb() {
  for (auto* handle : handles_) db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  db_->Close().PermitUncheckedError();  // all that matters was synced by its commit
}

Database::~Database() { Close(); }

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
  std::vector<rocksdb::ColumnFamilyHandle*> handles, others;
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status =
      rocksdb::DB::Open(options, DbPath(path_).string(), {unused}, &others, &raw);
  if (!status.ok()) return status;
  status = raw->CreateColumnFamilies(families_, &handles);
  families_.push_back(unused);
  handles.insert(handles.end(), others.begin(), others.end());
  open_ = std::make_shared<OpenRocksDb>(raw, std::move(handles));
  if (!status.ok()) return status;
  // Writes once through the log before anything is ingested. In a database that has only ever
  // ingested, a snapshot at sequence number 0 would make compaction drop live keys.
  rocksdb::WriteOptions sync;
  sync.sync = true;
  auto* meta = handle(Family::kMeta);
  status = raw->Put(sync, meta, {keys::kNextBirth.data(), keys::kNextBirth.size()},
                    EncodeNumber(kFirstSaveId + kSaveBlock));
  return status.ok() ? raw->Flush(rocksdb::FlushOptions(), meta) : status;
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
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  status = rocksdb::DB::OpenForReadOnly(db_options_, db_path, families_, &handles, &raw);
  if (!status.ok()) return FromRocksDb(status, what);
  open_ = std::make_shared<OpenRocksDb>(raw, std::move(handles));
  return Status::Ok();
}

// Opens the newest state for reading, with all files that exist.
Status Database::OpenDespite() const {
  Close();
  rocksdb::DBOptions options = db_options_;
  options.paranoid_checks = false;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::OpenForReadOnly(options, DbPath(path_).string(), families_, &handles, &raw);
  if (!status.ok()) return OpenError(status, path_);
  open_ = std::make_shared<OpenRocksDb>(raw, std::move(handles));
  return Status::Ok();
}

namespace {

// Compares tables by their numbers.
bool Has(std::span<const LostTable> tables, uint64_t number) {
  return std::ranges::find(tables, number, &LostTable::number) != tables.end();
}

FamilyTables Without(std::span<const LostTable> left_out, FamilyTables tables) {
  for (const LostTable& table : left_out) {
    tables[table.family].erase(table.number);
    if (tables[table.family].empty()) tables.erase(table.family);
  }
  return tables;
}

}  // namespace

// Opens the state that `whole` shows once more, without these tables. It has no chunk, either:
// those are read from `whole`, where their tables, which do not overlap, are not in the way of each
// other.
Result<std::shared_ptr<const Database::Partial>> Database::OpenWithout(
    std::vector<LostTable> tables, const OpenRocksDb& whole) const {
  std::vector<rocksdb::LiveFileMetaData> files_of_whole;
  whole.db()->GetLiveFilesMetaData(&files_of_whole);
  const auto* const chunks = whole.handle(Family::kChunks);
  for (const rocksdb::LiveFileMetaData& file : files_of_whole) {
    if (file.column_family_name != chunks->GetName() || Has(tables, file.file_number)) continue;
    tables.push_back({.family = file.column_family_name,
                      .number = file.file_number,
                      .level = file.level,
                      .family_id = chunks->GetID()});
  }
  auto partial = std::make_shared<Partial>();
  VARVE_ASSIGN_OR_RETURN(const auto files, FileSystemWithout(path_, tables));
  partial->env = rocksdb::NewCompositeEnv(std::make_shared<FrameFileSystem>(files));
  rocksdb::DBOptions options = MakeDbOptionsOf(path_);
  options.env = partial->env.get();
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::OpenForReadOnly(options, DbPath(path_).string(), families_, &handles, &raw);
  if (!status.ok()) return OpenError(status, path_);
  partial->open = std::make_shared<OpenRocksDb>(raw, std::move(handles));
  if (partial->open->Tables() == Without(tables, whole.Tables())) {
    return std::shared_ptr<const Partial>(partial);
  }
  return Status::Unavailable("the store in " + path_.string() + " has changed meanwhile");
}

// Returns the tables of the family that hold no key of the range, and in which a search for the
// range fails all the same: RocksDB looks for the next key in each table of level 0.
std::vector<LostTable> Database::FindInTheWay(Family family, std::string_view first,
                                              std::string_view end, const Use& use) const {
  std::vector<LostTable> found;
  for (const rocksdb::LiveFileMetaData& file : FilesOf(family)) {
    if (Overlaps(file.smallestkey, file.largestkey, first, end)) continue;
    rocksdb::SstFileReader reader(MakeTableOptions());
    rocksdb::Status status = reader.Open((DbPath(path_) / file.name).string());
    for (const bool forward : {true, false}) {
      if (!status.ok()) break;
      const std::unique_ptr<rocksdb::Iterator> at(reader.NewIterator(rocksdb::ReadOptions()));
      const std::string_view key = forward || end.empty() ? first : end;
      forward ? at->Seek({key.data(), key.size()}) : at->SeekForPrev({key.data(), key.size()});
      status = at->status();
    }
    if (!status.IsCorruption()) continue;
    found.push_back({.family = file.column_family_name,
                     .number = file.file_number,
                     .level = file.level,
                     .family_id = use.handle(family)->GetID()});
  }
  return found;
}

// For a search that has met a damaged block: the same state without the tables that are in its way.
// Null: there is none.
std::shared_ptr<const Database::Partial> Database::OpenAround(Family family, std::string_view first,
                                                              std::string_view end,
                                                              const Use& use) const {
  if (is_frozen_ || guard_ != nullptr || family == Family::kChunks) return nullptr;
  std::vector<LostTable> left_out = FindInTheWay(family, first, end, use);
  if (left_out.empty()) return nullptr;
  {
    const std::lock_guard lock(lost_mutex_);
    for (const LostTable& table : lost_) {
      if (sound_ != nullptr && !Has(left_out, table.number)) left_out.push_back(table);
    }
  }
  const std::lock_guard lock(around_mutex_);
  FamilyTables wanted = Without(left_out, use.open()->Tables());
  wanted.erase(use.handle(Family::kChunks)->GetName());
  if (around_ != nullptr && around_->open->Tables() == wanted)
    return around_;  // tables never change
  const auto opened = OpenWithout(left_out, *use.open());
  if (!opened.ok()) return nullptr;
  around_ = *opened;
  return around_;
}

// What is shown from now on has other tables.
void Database::ForgetAround() const {
  const std::lock_guard lock(around_mutex_);
  around_.reset();
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
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(db_options_, DbPath(path_).string(), families_, &handles, &raw);
  VARVE_RETURN_IF_ERROR(CheckLock(status, path_));
  if (!status.ok()) return OpenError(status, path_, families_);
  open_ = std::make_shared<OpenRocksDb>(raw, std::move(handles));
  RemoveEmptyLogs(path_);
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

// Says which file is lost that may hold keys of the range. Empty = none.
std::string Database::LostIn(Family family, const Range& range) const {
  const std::lock_guard lock(lost_mutex_);
  for (const LostTable& table : lost_) {
    const bool is_of_family = table.family == kFamilyNames[static_cast<int>(family)];
    if (is_of_family && Overlaps(table.first_key, table.last_key, range.first, range.end)) {
      return table.what;
    }
  }
  return "";
}

// An error if a lost table may hold keys of the range.
Status Database::CheckRange(Family family, const Range& range, const std::string& what) const {
  if (sound_ == nullptr) return Status::Ok();  // RocksDB meets the lost table itself
  const std::string lost = LostIn(family, range);
  return lost.empty() ? Status::Ok() : Status::Corruption(what + ": " + lost);
}

// Where a family is scanned: without lost tables, if it was opened so.
const OpenRocksDb& Database::SoundPlaceOf(Family family, const Use& use) const {
  return sound_ == nullptr || family == Family::kChunks ? *use.open() : *sound_->open;
}

// Where a key is read. RocksDB looks into each table of a family that has three or fewer, whatever
// keys these hold, so a lost one is left out unless it may hold the key.
const OpenRocksDb& Database::PlaceOf(Family family, std::string_view key, const Use& use) const {
  if (sound_ == nullptr) return *use.open();
  const bool is_lost = !LostIn(family, {key, std::string(key) + '\0'}).empty();
  return is_lost ? *use.open() : SoundPlaceOf(family, use);
}

// The error of a read that met one. Only where RocksDB looks into lost tables that hold nothing of
// the range may one of them be the cause.
Status Database::ReadError(Family family, const rocksdb::Status& status, const std::string& what,
                           const Range& range) const {
  const bool skips_others = sound_ != nullptr || (despite_lost_ && family == Family::kChunks);
  const std::string lost = skips_others ? LostIn(family, range) : LostOf(family);
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
  {
    const std::lock_guard lock(lost_mutex_);
    if (!behind_.ok()) return behind_.WithContext(what);
  }
  if (const std::string lost = LostOf(family); !lost.empty()) {
    return Status::Corruption(what + ": " + lost);
  }
  const std::lock_guard lock(lost_mutex_);
  const auto held = held_.find(std::string(kFamilyNames[static_cast<int>(family)]));
  return held == held_.end() ? Status::Ok() : Status::IOError(what + ": " + held->second);
}

Status Database::CheckFilesOf(Family family) const {
  const std::string name(kFamilyNames[static_cast<int>(family)]);
  return CheckNotStale(family, "listing the files of family " + name);
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
  if (for_writing) {
    for (const auto& name : {DbPath(path), DbPath(path) / "LOCK"}) {
      VARVE_RETURN_IF_ERROR(CheckIsNoLink(name));
    }
  }
  VARVE_RETURN_IF_ERROR(CheckManifestLength(path));
  VARVE_ASSIGN_OR_RETURN(families_, FindFamilies(path, db_options_, family_options_));
  if (for_writing) return OpenWriter();
  return OpenReader();
}

Database::Use::Use(const Database* database) : database_(database) {
  const std::lock_guard lock(database_->use_mutex_);
  ++database_->uses_;
  open_ = database_->open_;
}

Database::Use::~Use() {
  if (database_ == nullptr) return;
  open_.reset();  // before it is not counted any more: Heal must be the one who closes it
  const std::lock_guard lock(database_->use_mutex_);
  if (--database_->uses_ == 0) database_->unused_.notify_all();
}

Result<Database::Use> Database::BeginRead() const {
  Use use(this);
  if (use.rocksdb() != nullptr) return use;
  return OpenAgainToRead();
}

// The disk may be better now. The next write heals the database.
Result<Database::Use> Database::OpenAgainToRead() const {
  {
    const std::lock_guard lock(use_mutex_);
    if (open_ == nullptr) {
      closed_ = OpenDespite();
      VARVE_RETURN_IF_ERROR(closed_);
    }
  }
  Use use(this);
  if (use.rocksdb() != nullptr) return use;
  return Status::Unavailable("the database in " + path_.string() + " is being opened again");
}

// For a read whose answer would be wrong if the family were out of date, or between two states.
// While RocksDB catches up, a family may show less than it does before and after. So `read(use)` is
// called again if that has happened meanwhile. The last time no catch-up may begin.
template <typename Read>
Status Database::ReadOneState(Family family, const std::string& what, const Read& read) const {
  constexpr int kAttempts = 8;
  std::unique_lock no_catch_up(catch_up_mutex_, std::defer_lock);
  for (int attempt = 1;; ++attempt) {
    if (attempt == kAttempts) no_catch_up.lock();
    const uint64_t events = ingest_events_;
    if (for_writing_ || events % 2 == 0) {
      VARVE_ASSIGN_OR_RETURN(Use use, BeginRead());
      VARVE_RETURN_IF_ERROR(CheckNotStale(family, what));
      read(std::move(use));
      if (for_writing_ || events == ingest_events_) return Status::Ok();
    }
    if (attempt + 1 < kAttempts) AwaitCommits();
  }
}

// An iterator shows one state however long it lives. `seek` moves it to the first key that is read.
// The caller reads no key outside of the range.
Result<Database::Reading> Database::BeginScan(Family family, const std::string& what,
                                              const rocksdb::ReadOptions& options,
                                              const Range& range, const Seek& seek) const {
  std::optional<Reading> reading;
  const auto open = [&](const OpenRocksDb& from) {
    reading->at.reset(from.db()->NewIterator(options, from.handle(family)));
    seek(reading->at.get());
  };
  VARVE_RETURN_IF_ERROR(ReadOneState(family, what, [&](Use use) {
    reading.reset();
    reading.emplace(Reading{std::move(use), sound_, nullptr});
    open(SoundPlaceOf(family, reading->use));
  }));
  if (reading->at->status().IsCorruption()) {
    if (auto partial = OpenAround(family, range.first, range.end, reading->use)) {
      reading->at.reset();  // before what it reads
      reading->partial = std::move(partial);
      open(*reading->partial->open);
    }
  }
  if (!reading->at->status().ok()) return ReadError(family, reading->at->status(), what, range);
  return *std::move(reading);
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
  std::weak_ptr<const OpenRocksDb> stopped;  // another may lie at the same address later
  {
    const Use use(this);
    stopped = use.open();
    if (use.rocksdb() != nullptr) use.rocksdb()->DisableManualCompaction();
  }
  std::unique_lock lock(use_mutex_);
  unused_.wait(lock, [&] { return uses_ == 0; });
  if (!has_failed()) {  // another thread did it
    const auto still_open = stopped.lock();
    if (still_open != nullptr) still_open->db()->EnableManualCompaction();
    return Status::Ok();
  }
  Close();
  ForgetAround();
  file_system_->EndDoubt();
  failed_ = false;
  const auto open = [this] { return Guarded("opening", [this] { return OpenWriter(); }); };
  closed_ = open();
  if (IsNoSpace(closed_)) {
    RemoveUnnamedTables();
    closed_ = open();
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
  const auto files = ReadManifest(path_, families_);
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

std::vector<rocksdb::LiveFileMetaData> Database::FilesOf(Family family) const {
  std::vector<rocksdb::LiveFileMetaData> files;
  const Use use(this);
  use.rocksdb()->GetLiveFilesMetaData(&files);
  const std::string& name = use.handle(family)->GetName();
  std::erase_if(files, [&](const auto& file) { return file.column_family_name != name; });
  for (auto& file : files) file.name = std::filesystem::path(file.name).filename();
  return files;
}

bool Database::HasIngested(const std::filesystem::path& path) const {
  struct stat source {
  }, table{};
  const Result<Use> use = BeginRead();
  if (!use.ok() || ::stat(path.c_str(), &source) != 0) return false;
  std::vector<rocksdb::LiveFileMetaData> files;
  use->rocksdb()->GetLiveFilesMetaData(&files);
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
  std::string value;
  rocksdb::Status status;
  VARVE_RETURN_IF_ERROR(ReadOneState(family, what, [&](const Use& use) {
    value.clear();
    const OpenRocksDb& open = PlaceOf(family, key, use);
    status = open.db()->Get(rocksdb::ReadOptions(), open.handle(family), {key.data(), key.size()},
                            &value);
  }));
  if (status.IsNotFound()) return std::optional<std::string>();
  if (!status.ok()) return ReadError(family, status, what, {key, std::string(key) + '\0'});
  return std::optional<std::string>(std::move(value));
}

Status Database::GetFrame(ChunkAddress address, rocksdb::PinnableSlice* frame) const {
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  const std::string key = keys::Chunk(address);
  rocksdb::ReadOptions options;
  options.verify_checksums = false;
  frame->Reset();
  rocksdb::Status status;
  const OpenRocksDb& open = PlaceOf(Family::kChunks, key, use);
  {
    const FrameFileSystem::ReadOfFrame looks;
    status = open.db()->Get(options, open.handle(Family::kChunks), key, frame);
  }
  if (status.ok()) return Status::Ok();
  // Where the block does not look sound, or lacks the key, its checksum decides. RocksDB verifies a
  // block only when it reads the file, so the block must not be in the cache.
  options.verify_checksums = true;
  frame->Reset();
  ForgetBlocks(use);
  status = open.db()->Get(options, open.handle(Family::kChunks), key, frame);
  if (status.ok()) return Status::Ok();
  const std::string what =
      "reading frame " + std::to_string(address.save_id) + "/" + std::to_string(address.ordinal);
  if (status.IsNotFound()) VARVE_RETURN_IF_ERROR(CheckNotStale(Family::kChunks, what));
  if (status.IsNotFound()) return FromRocksDb(status, what);
  return ReadError(Family::kChunks, status, what, {key, key + '\0'});
}

std::map<ChunkAddress, rocksdb::PinnableSlice> Database::GetFrames(
    std::span<const ChunkAddress> addresses) const {
  std::map<ChunkAddress, rocksdb::PinnableSlice> found;
  const auto use = BeginRead();
  if (!use.ok()) return found;
  std::vector<std::string> names;
  for (const ChunkAddress& address : addresses) names.push_back(keys::Chunk(address));
  const std::vector<rocksdb::Slice> keys(names.begin(), names.end());
  std::vector<rocksdb::PinnableSlice> frames(keys.size());
  std::vector<rocksdb::Status> statuses(keys.size());
  use->rocksdb()->MultiGet(rocksdb::ReadOptions(), use->handle(Family::kChunks), keys.size(),
                           keys.data(), frames.data(), statuses.data(), /*sorted_input=*/true);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (statuses[i].ok()) found.emplace(addresses[i], std::move(frames[i]));
  }
  return found;
}

Status Database::ScanFrom(Family family, std::string_view prefix, std::string_view first,
                          const Visit& visit) const {
  const std::string what = "scanning family " + std::string(kFamilyNames[static_cast<int>(family)]);
  const std::string end = keys::PrefixEnd(prefix);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options;
  if (!end.empty()) options.iterate_upper_bound = &bound;
  VARVE_RETURN_IF_ERROR(CheckRange(family, {first, end}, what));
  const auto seek = [first](rocksdb::Iterator* at) { at->Seek({first.data(), first.size()}); };
  VARVE_ASSIGN_OR_RETURN(const Reading reading,
                         BeginScan(family, what, options, {first, end}, seek));
  rocksdb::Iterator* const it = reading.at.get();
  for (; it->Valid(); it->Next()) {
    VARVE_RETURN_IF_ERROR(
        visit({it->key().data(), it->key().size()}, {it->value().data(), it->value().size()}));
  }
  if (it->status().ok()) return Status::Ok();
  return ReadError(family, it->status(), what, {first, end});
}

Result<std::optional<std::string>> Database::FirstKeyFrom(Family family, std::string_view prefix,
                                                          std::string_view first) const {
  const std::string what =
      "searching family " + std::string(kFamilyNames[static_cast<int>(family)]);
  const std::string limit = keys::PrefixEnd(prefix);
  const auto seek = [first](rocksdb::Iterator* at) { at->Seek({first.data(), first.size()}); };
  VARVE_ASSIGN_OR_RETURN(const Reading reading,
                         BeginScan(family, what, rocksdb::ReadOptions(), {first, limit}, seek));
  const rocksdb::Iterator* const it = reading.at.get();
  std::optional<std::string> key;
  if (it->Valid() && it->key().starts_with({prefix.data(), prefix.size()})) {
    key = it->key().ToString();
  }
  const std::string end = key.has_value() ? *key + '\0' : limit;
  VARVE_RETURN_IF_ERROR(CheckRange(family, {first, end}, what));
  return key;
}

Result<std::optional<std::string>> Database::LastKeyBefore(Family family, std::string_view prefix,
                                                           std::string_view end) const {
  const std::string what =
      "searching family " + std::string(kFamilyNames[static_cast<int>(family)]);
  const auto seek = [end](rocksdb::Iterator* at) {
    if (end.empty()) return at->SeekToLast();
    const rocksdb::Slice bound(end.data(), end.size());
    at->SeekForPrev(bound);
    if (at->Valid() && at->key() == bound) at->Prev();
  };
  VARVE_ASSIGN_OR_RETURN(const Reading reading,
                         BeginScan(family, what, rocksdb::ReadOptions(), {prefix, end}, seek));
  const rocksdb::Iterator* const it = reading.at.get();
  std::optional<std::string> key;
  if (it->Valid() && it->key().starts_with({prefix.data(), prefix.size()})) {
    key = it->key().ToString();
  }
  VARVE_RETURN_IF_ERROR(
      CheckRange(family, {key.has_value() ? std::string_view(*key) : prefix, end}, what));
  return key;
}

rocksdb::Status Database::FinishTable(rocksdb::SstFileWriter* writer,
                                      const std::filesystem::path& path) const {
  rocksdb::ExternalSstFileInfo info;
  rocksdb::Status status = writer->Finish(&info);  // syncs
  if (guard_ == nullptr || !status.ok()) return status;
  const std::lock_guard lock(tags_mutex_);
  // A save that was given up has removed its tables.
  std::erase_if(tags_, [](const auto& each) {
    std::error_code ignored;
    return !std::filesystem::exists(each.first, ignored) && !ignored;
  });
  tags_.insert_or_assign(path.string(), info.file_checksum);
  return status;
}

Status Database::CompareTags(std::span<const std::string> names) const {
  if (guard_ == nullptr) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  return guard_->Compare(use.rocksdb(), names);
}

// Without them RocksDB would read each table again, and take what it reads for what was written.
Status Database::AddTags(std::vector<rocksdb::IngestExternalFileArg>* args) {
  if (guard_ == nullptr) return Status::Ok();
  const std::lock_guard lock(tags_mutex_);
  for (rocksdb::IngestExternalFileArg& arg : *args) {
    arg.options.verify_file_checksum = false;
    for (const std::string& path : arg.external_files) {
      const auto tag = tags_.find(path);
      if (tag == tags_.end()) return Status::FailedPrecondition(path + " has no tag");
      arg.files_checksums.push_back(tag->second);
      arg.files_checksum_func_names.emplace_back(db_options_.file_checksum_gen_factory->Name());
    }
  }
  for (const auto& arg : *args) {
    for (const std::string& path : arg.external_files) tags_.erase(path);
  }
  return Status::Ok();
}

rocksdb::Status Database::Ingest(std::vector<rocksdb::IngestExternalFileArg> args) {
  if (const Status tagged = AddTags(&args); !tagged.ok()) {
    return rocksdb::Status::InvalidArgument(tagged.message());
  }
  const std::lock_guard lock(ingest_mutex_);
  const CountsChange change(&ingest_events_);
  if (file_system_ != nullptr) file_system_->BeginIngest();
  rocksdb::Status status =
      ingest_for_test_ ? ingest_for_test_(args) : open_->db()->IngestExternalFiles(args);
  if (file_system_ != nullptr) file_system_->EndIngest();
  return status;
}

void Database::AwaitCommits() const {
  ++num_waiting_;
  { const std::lock_guard lock(catch_up_mutex_); }
  { const std::lock_guard lock(ingest_mutex_); }
  --num_waiting_;
}

}  // namespace varve::internal
