// SPDX-License-Identifier: Apache-2.0
//
// Making, opening and closing a store, and looking up its runs and steps.
#include "varve/store.h"

#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <random>
#include <system_error>

#include "store/cursor.h"
#include "store/group/group_store.h"
#include "store/guarded.h"
#include "store/store_impl.h"
#include "store/util.h"

namespace varve {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kReserveBytes = uint64_t{8} << 20;
// Births are persisted as used in blocks of this many: one small commit for many saves.
constexpr uint64_t kBirthBlock = 4096;
constexpr auto kCatchUpInterval = std::chrono::seconds(10);
constexpr int64_t kRefreshMs = 100;

uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Held while a store is being made: of two processes that make one in the same folder, the second
// would remove what the first has built.
class CreateLock {
 public:
  explicit CreateLock(const fs::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ < 0) {
      status_ = ErrnoStatus("open folder", folder, errno);
    } else if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      status_ = Status::Locked("a store is being made in " + folder.string() +
                               " by someone else; it is locked");
    }
  }
  CreateLock(const CreateLock&) = delete;
  CreateLock& operator=(const CreateLock&) = delete;
  ~CreateLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  const Status& status() const { return status_; }

 private:
  const int fd_;
  Status status_;
};

// A run without a step is legal, but a reader that opens while the writer replaces a file may see
// one family empty for a moment: as with anything missing, it looks again before it believes it.
constexpr std::string_view kNoStep = "no step in run ";
Status RunHasNoStep(std::string_view run) {
  return Status::NotFound(std::string(kNoStep) + std::string(run));
}
bool IsRunWithoutStep(const Status& status) {
  return status.code() == StatusCode::kNotFound && status.message().starts_with(kNoStep);
}

// A folder in which Create may work: new, empty, or left by a Create that did not finish.
Status PrepareFolder(const fs::path& path) {
  std::error_code error;
  // Before all other names: a folder lists them in any order, and a store holds more than debris.
  if (fs::exists(path / kFormatFileName, error)) {
    return Status::AlreadyExists("there is a store in " + path.string());
  }
  if (IsGroupRoot(path)) {
    return Status::AlreadyExists("there is the root of a group in " + path.string());
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    const bool debris = name == "db" || name == "incoming" || name == "FORMAT.tmp";
    if (!debris) {
      return Status::FailedPrecondition("folder " + path.string() + " is not empty (it holds " +
                                        name + ") and not a store");
    }
  }
  if (error) return Status::IOError("cannot list " + path.string() + ": " + error.message());
  fs::remove_all(path / "db", error);  // without FORMAT nothing in it was ever committed
  if (!error) fs::create_directory(path / "incoming", error);
  if (error) return Status::IOError("cannot prepare " + path.string() + ": " + error.message());
  return Status::Ok();
}

// Of the group that a store is a member of; empty: of none.
fs::path RootOfMember(const fs::path& path) {
  std::error_code error;
  const fs::path full = fs::weakly_canonical(path, error);
  if (error || !full.has_parent_path()) return {};
  const fs::path root = full.parent_path().parent_path();
  return full.parent_path() == MembersFolder(root) && IsGroupRoot(root) ? root : fs::path();
}

// The members of a group have one for each host: that many ranks would need theirs at a time is no
// reason to keep the space of all.
fs::path ReserveOf(const fs::path& store) {
  const fs::path root = RootOfMember(store);
  if (root.empty()) return store / "RESERVE";
  char host[HOST_NAME_MAX + 1] = {};
  const bool is_known = ::gethostname(host, sizeof(host) - 1) == 0;
  return root / (std::string("RESERVE.") + (is_known ? host : "unknown"));
}

}  // namespace

Result<std::unique_ptr<Store>> Store::Create(const fs::path& path, const CreateOptions& options) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return Status::IOError("cannot create folder " + path.string() + ": " + error.message());
  }
  const CreateLock lock(path);
  VARVE_RETURN_IF_ERROR(lock.status());
  VARVE_RETURN_IF_ERROR(PrepareFolder(path));
  VARVE_RETURN_IF_ERROR(Database::Create(path));
  VARVE_RETURN_IF_ERROR(SyncFolder(path / "db"));
  FormatFile format;
  format.store_id = {RandomNumber(), RandomNumber()};
  format.digest_seed = options.digest_seed.value_or(RandomNumber());
  VARVE_RETURN_IF_ERROR(SyncFolder(fs::absolute(path).lexically_normal().parent_path()));
  VARVE_RETURN_IF_ERROR(WriteFormatFile(path, format));  // from here on it is a store
  VARVE_ASSIGN_OR_RETURN(auto store,
                         StoreImpl::OpenPath(path, options.store, /*for_writing=*/true));
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<Store>> Store::Open(const fs::path& path, const StoreOptions& options) {
  if (IsGroupRoot(path)) {
    VARVE_ASSIGN_OR_RETURN(auto group, GroupStore::OpenPath(path, options, /*for_writing=*/true));
    return std::unique_ptr<Store>(std::move(group));
  }
  if (const fs::path root = RootOfMember(path); !root.empty()) {
    return Status::FailedPrecondition(path.string() + " is a member of the group in " +
                                      root.string() + ": what writes is done there");
  }
  VARVE_RETURN_IF_ERROR(CheckNotLost(path));
  VARVE_ASSIGN_OR_RETURN(auto store, StoreImpl::OpenPath(path, options, /*for_writing=*/true));
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<Store>> Store::OpenOrCreate(const fs::path& path,
                                                   const CreateOptions& options) {
  auto store = Open(path, options.store);
  if (store.ok() || store.status().code() != StatusCode::kNotFound) return store;
  return Create(path, options);
}

Result<std::unique_ptr<Store>> Store::OpenForReading(const fs::path& path,
                                                     const StoreOptions& options) {
  if (IsGroupRoot(path)) {
    VARVE_ASSIGN_OR_RETURN(auto group, GroupStore::OpenPath(path, options, /*for_writing=*/false));
    return std::unique_ptr<Store>(std::move(group));
  }
  VARVE_RETURN_IF_ERROR(CheckNotLost(path));
  VARVE_ASSIGN_OR_RETURN(auto store, StoreImpl::OpenPath(path, options, /*for_writing=*/false));
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<StoreImpl>> StoreImpl::OpenPath(const fs::path& path,
                                                       const StoreOptions& options,
                                                       bool for_writing) {
  std::unique_ptr<StoreImpl> store(new StoreImpl);
  store->path_ = path;
  store->options_ = options;
  store->options_.max_delta_depth = std::clamp(options.max_delta_depth, 1, kMaxChain - 1);
  VARVE_ASSIGN_OR_RETURN(store->format_, ReadFormatFile(path, for_writing));
  // RocksDB starts threads while it opens, and keeps its lock when it gets none: better to know before.
  const std::string starting = "starting a thread for the store in " + path.string();
  VARVE_RETURN_IF_ERROR(Guarded(starting, [] {
    std::jthread([] {}).join();
    return Status::Ok();
  }));
  auto database = for_writing ? Database::OpenForWriting(path) : Database::OpenForReading(path);
  if (for_writing && IsNoSpace(database.status())) {
    // Even opening takes a little space; the reserve gives it, so that steps can be dropped.
    store->ReleaseReserve();
    database = Database::OpenForWriting(path);
  }
  if (!database.ok()) return database.status();
  store->database_ = *std::move(database);
  store->chunk_reader_ =
      std::make_unique<ChunkReader>(store->database_.get(), store->format_.digest_seed);
  store->last_catch_up_ms_ = NowMs();
  if (for_writing) VARVE_RETURN_IF_ERROR(store->PrepareForWriting());
  VARVE_RETURN_IF_ERROR(Guarded(starting, [&store] { return store->StartThreads(); }));
  return store;
}

Status StoreImpl::StartThreads() {
  background_ = std::jthread([this](std::stop_token stop) {
    database_->for_writing() ? MergeLoop(stop) : CatchUpLoop(stop);
  });
  if (database_->for_writing()) {
    inbox_loop_ = std::jthread([this](std::stop_token stop) { InboxLoop(stop); });
  }
  return Status::Ok();
}

StoreImpl::~StoreImpl() = default;

int StoreImpl::num_threads() const {
  if (options_.num_threads > 0) return options_.num_threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Status StoreImpl::PrepareForWriting() {
  std::error_code error;
  fs::create_directory(incoming(), error);
  // Leftovers of a crash may be hard links to committed files: they are unlinked before anything is
  // written, and no name is ever opened twice.
  for (const fs::directory_entry& entry : fs::directory_iterator(incoming(), error)) {
    fs::remove(entry.path(), error);
    if (error) break;
  }
  if (error) {
    return Status::IOError("cannot clear " + incoming().string() + ": " + error.message());
  }
  VARVE_RETURN_IF_ERROR(SweepOrphans());
  const fs::path own = path_ / "RESERVE";
  if (ReserveOf(path_) != own) ::unlink(own.c_str());  // made when each member had one
  const Status reserve = EnsureReserve();
  // A full disk must not keep anyone from opening the store to drop steps.
  return IsNoSpace(reserve) ? Status::Ok() : reserve;
}

// Deletes chunk files of births without a record, and notes how much lives of the others. Looks at
// records and file bounds only: O(births + files).
Status StoreImpl::SweepOrphans() {
  std::set<uint64_t> births;
  dead_space_.Begin();
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kBirths, "", [&](std::string_view key, std::string_view value) -> Status {
        const auto parsed = keys::ParseBirth(key);
        if (!parsed.has_value() || parsed->block.has_value()) return Status::Ok();
        const Result<BirthRecord> record = DecodeBirthRecord(value);  // a damaged one keeps its files
        births.insert(parsed->birth);
        if (record.ok()) {
          dead_space_.Note(parsed->birth, &*record);
        } else {
          dead_space_.NoteUnknown(parsed->birth);
        }
        return Status::Ok();
      }));
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database_->BeginRead());
  rocksdb::ColumnFamilyMetaData family;
  database_->rocksdb()->GetColumnFamilyMetaData(database_->handle(Family::kChunks), &family);
  for (const auto& level : family.levels) {
    for (const auto& file : level.files) {
      const auto first = keys::ParseChunk(file.smallestkey);
      const auto last = keys::ParseChunk(file.largestkey);
      if (!first.has_value() || !last.has_value()) continue;  // Check reports it
      const auto it = births.lower_bound(first->birth);
      if (it != births.end() && *it <= last->birth) continue;
      const rocksdb::Slice begin(file.smallestkey), end(file.largestkey);
      const rocksdb::Status status = rocksdb::DeleteFilesInRange(
          database_->rocksdb(), database_->handle(Family::kChunks), &begin, &end);
      VARVE_RETURN_IF_ERROR(FromRocksDb(status, "sweeping orphaned chunks"));
    }
  }
  return Status::Ok();
}

Status StoreImpl::EnsureReserve() const {
  const fs::path path = ReserveOf(path_);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 &&
      static_cast<uint64_t>(info.st_blocks) * 512 >= kReserveBytes) {
    return Status::Ok();
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("create", path, errno);
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(kReserveBytes));
  ::close(fd);
  if (error == 0) return Status::Ok();
  ::unlink(path.c_str());
  return ErrnoStatus("reserve space in", path, error);
}

void StoreImpl::ReleaseReserve() const {
  ::unlink(ReserveOf(path_).c_str());
  ::unlink((path_ / "RESERVE").c_str());  // of a member that was made when each had one
}

Status StoreImpl::RequireWriter() const {
  if (database_->for_writing()) return Status::Ok();
  return Status::FailedPrecondition("the store in " + path_.string() + " is open for reading only");
}

Result<uint64_t> StoreImpl::NewBirth() {
  const std::lock_guard lock(birth_mutex_);
  if (next_birth_ == reserved_births_) {
    VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kMeta, keys::kNextBirth));
    const auto first = value.has_value() ? DecodeNumber(*value) : std::nullopt;
    if (!first.has_value() || *first == 0) {
      return Status::Corruption("meta key next_birth is missing or not a number");
    }
    CommitBatch batch;
    batch.Put(Family::kMeta, std::string(keys::kNextBirth), EncodeNumber(*first + kBirthBlock));
    VARVE_RETURN_IF_ERROR(batch.Commit(database_.get(), incoming(), {}));
    next_birth_ = *first;
    reserved_births_ = *first + kBirthBlock;
  }
  pins_.BeginBirth(next_birth_);
  return next_birth_++;
}

Status StoreImpl::CommitCounted(const CommitBatch& batch, const ReferenceCounts& counts,
                                std::span<const fs::path> chunk_files) {
  const Status status = batch.Commit(database_.get(), incoming(), chunk_files);
  if (!status.ok()) {
    dead_space_.Forget();  // perhaps it is there all the same
    return status;
  }
  counts.VisitChanged(
      [this](uint64_t birth, const BirthRecord* record) { dead_space_.Note(birth, record); });
  return Status::Ok();
}

void StoreImpl::NoteCommit() {
  {
    const std::lock_guard lock(background_mutex_);
    ++commits_since_merge_;
  }
  background_wake_.notify_one();
}

Result<RunRecord> StoreImpl::FindRun(std::string_view run) const {
  VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kMeta, keys::Run(run)));
  if (!value.has_value()) return Status::NotFound("no run " + std::string(run));
  return DecodeRunRecord(*value);
}

Result<std::string> StoreImpl::RunName(RunId id) const { return RunNames(this).Find(id); }

Result<std::string> StoreImpl::RunNames::Find(RunId id) {
  if (!names_.has_value()) {
    std::map<RunId, std::string> names;
    VARVE_RETURN_IF_ERROR(store_->database_->Scan(
        Family::kMeta, keys::kRunPrefix,
        [&](std::string_view key, std::string_view value) -> Status {
          VARVE_ASSIGN_OR_RETURN(const RunRecord record, DecodeRunRecord(value));
          names[record.id] = keys::ParseRun(key).value_or("");
          return Status::Ok();
        }));
    names_ = std::move(names);
  }
  const auto it = names_->find(id);
  return it == names_->end() ? std::string() : it->second;
}

Result<std::optional<StepRecord>> StoreImpl::FindStep(StepKey step) const {
  VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kSteps, keys::Step(step)));
  if (!value.has_value()) return std::optional<StepRecord>();
  Result<StepRecord> record = DecodeStepRecord(*value);
  if (!record.ok()) {
    return record.status().WithContext("step " + std::to_string(step.step) + " of run id " +
                                       std::to_string(step.run));
  }
  return std::optional<StepRecord>(*std::move(record));
}

Result<std::vector<ChunkRef>> StoreImpl::ReadList(ListAddress list, uint64_t chunks,
                                                  Cursor* lists) const {
  const auto name = [&] {
    return "list " + std::to_string(list.birth) + "/" + std::to_string(list.number);
  };
  const std::string key = keys::List(list);
  std::optional<std::string> alone;
  std::optional<std::string_view> value;
  if (lists != nullptr) {
    VARVE_ASSIGN_OR_RETURN(value, lists->Find(key));
  } else {
    VARVE_ASSIGN_OR_RETURN(alone, database_->Get(Family::kLists, key));
    value = alone;
  }
  if (!value.has_value()) return Status::Corruption(name() + " is missing");
  VARVE_ASSIGN_OR_RETURN(std::vector<ChunkRef> refs, DecodeChunkList(*value));
  const uint64_t expected = std::min<uint64_t>(kChunksPerList, chunks);
  if (refs.size() == expected) return refs;
  return Status::Corruption(name() + " names " + std::to_string(refs.size()) + " chunks, expected " +
                            std::to_string(expected));
}

Result<std::vector<std::pair<std::string, uint64_t>>> StoreImpl::ListTags(RunId run) const {
  std::vector<std::pair<std::string, uint64_t>> tags;
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kMeta, keys::TagPrefix(run), [&](std::string_view key, std::string_view value) {
        const auto tag = keys::ParseTag(key);
        const auto step = DecodeNumber(value);
        if (!tag.has_value() || !step.has_value()) {
          return Status::Corruption("a malformed tag in family meta");
        }
        tags.emplace_back(*tag, *step);
        return Status::Ok();
      }));
  return tags;
}

Result<std::vector<std::string>> StoreImpl::TagsOf(StepKey step) const {
  const std::lock_guard lock(tags_mutex_);
  const uint64_t events = database_->num_ingest_events();
  if (!tags_.has_value() || tags_->events != events || tags_->run != step.run) {
    tags_.reset();
    TagsByStep read{events, step.run, {}};
    VARVE_ASSIGN_OR_RETURN(const auto tags, ListTags(step.run));
    for (const auto& [tag, tagged] : tags) read.tags[tagged].push_back(tag);
    tags_ = std::move(read);
  }
  const auto it = tags_->tags.find(step.step);
  std::vector<std::string> found =
      it == tags_->tags.end() ? std::vector<std::string>() : it->second;
  // What changed while it was read, or is about to, is not remembered.
  if (events % 2 != 0 || events != database_->num_ingest_events()) tags_.reset();
  return found;
}

Result<CheckpointInfo> StoreImpl::MakeInfo(std::string_view run, StepKey key,
                                           const StepRecord& record, RunNames* names) const {
  CheckpointInfo info;
  info.id = {std::string(run), key.step};
  info.created =
      std::chrono::system_clock::time_point(std::chrono::microseconds(record.created_us));
  if (record.parent.has_value()) {
    std::string parent_run(run);
    if (record.parent->run != key.run) {
      VARVE_ASSIGN_OR_RETURN(parent_run, names->Find(record.parent->run));
    }
    if (!parent_run.empty()) info.parent = CheckpointId{std::move(parent_run), record.parent->step};
  }
  info.num_tensors = record.num_tensors;
  info.logical_bytes = record.logical_bytes;
  info.new_bytes = record.new_bytes;
  info.stored_bytes = record.stored_bytes;
  info.metrics = record.metrics;
  return info;
}

Result<std::vector<RunInfo>> StoreImpl::ListRuns() const {
  VARVE_RETURN_IF_ERROR(Refresh());
  std::vector<RunInfo> runs;
  VARVE_RETURN_IF_ERROR(WithCatchUp([&] {
    runs.clear();
    RunNames names(this);
    return database_->Scan(Family::kMeta, keys::kRunPrefix,
                           [&](std::string_view key, std::string_view value) -> Status {
                             VARVE_ASSIGN_OR_RETURN(const RunRecord record, DecodeRunRecord(value));
                             RunInfo& run = runs.emplace_back();
                             run.name = keys::ParseRun(key).value_or("");
                             if (record.forked_from.has_value()) {
                               VARVE_ASSIGN_OR_RETURN(std::string from,
                                                      names.Find(record.forked_from->run));
                               if (!from.empty())
                                 run.forked_from = CheckpointId{from, record.forked_from->step};
                             }
                             return database_->Scan(Family::kSteps, keys::RunPrefix(record.id),
                                                    [&](std::string_view, std::string_view) {
                                                      ++run.num_steps;
                                                      return Status::Ok();
                                                    });
                           });
  }));
  return runs;
}

Result<std::vector<CheckpointInfo>> StoreImpl::ListCheckpoints(std::string_view run) const {
  VARVE_RETURN_IF_ERROR(Refresh());
  std::vector<CheckpointInfo> infos;
  const Status status = WithCatchUp([&]() -> Status {
    infos.clear();
    VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
    std::vector<std::pair<StepKey, StepRecord>> steps;
    VARVE_RETURN_IF_ERROR(database_->Scan(
        Family::kSteps, keys::RunPrefix(found.id),
        [&](std::string_view key, std::string_view value) -> Status {
          const auto step = keys::ParseStep(key);
          if (!step.has_value()) return Status::Corruption("a malformed key in family steps");
          VARVE_ASSIGN_OR_RETURN(StepRecord record, DecodeStepRecord(value));
          steps.emplace_back(*step, std::move(record));
          return Status::Ok();
        }));
    database_->AwaitCommits();  // a step that is to be seen has its tags
    std::map<uint64_t, std::vector<std::string>> tags_of;
    VARVE_ASSIGN_OR_RETURN(const auto tags, ListTags(found.id));
    for (const auto& [tag, step] : tags) tags_of[step].push_back(tag);
    RunNames names(this);
    for (const auto& [key, record] : steps) {
      VARVE_ASSIGN_OR_RETURN(CheckpointInfo info, MakeInfo(run, key, record, &names));
      if (const auto it = tags_of.find(key.step); it != tags_of.end()) info.tags = it->second;
      infos.push_back(std::move(info));
    }
    return infos.empty() ? RunHasNoStep(run) : Status::Ok();
  });
  if (!status.ok() && !IsRunWithoutStep(status)) return status;
  return infos;
}

Result<std::optional<uint64_t>> StoreImpl::LatestStep(std::string_view run) const {
  VARVE_RETURN_IF_ERROR(Refresh());
  std::optional<uint64_t> latest;
  const Status status = WithCatchUp([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
    VARVE_ASSIGN_OR_RETURN(latest, NewestStep(found.id));
    return latest.has_value() ? Status::Ok() : RunHasNoStep(run);
  });
  if (!status.ok() && !IsRunWithoutStep(status)) return status;
  return latest;
}

Result<std::optional<uint64_t>> StoreImpl::NewestStep(RunId run) const {
  VARVE_ASSIGN_OR_RETURN(const auto key, database_->LastKey(Family::kSteps, keys::RunPrefix(run)));
  const auto step = key.has_value() ? keys::ParseStep(*key) : std::nullopt;
  return step.has_value() ? std::optional(step->step) : std::nullopt;
}

Result<std::optional<uint64_t>> StoreImpl::NewestStepBefore(StepKey step) const {
  VARVE_ASSIGN_OR_RETURN(
      const auto key,
      database_->LastKeyBefore(Family::kSteps, keys::RunPrefix(step.run), keys::Step(step)));
  const auto found = key.has_value() ? keys::ParseStep(*key) : std::nullopt;
  return found.has_value() ? std::optional(found->step) : std::nullopt;
}

Result<uint64_t> StoreImpl::FindTag(std::string_view run, std::string_view tag) const {
  VARVE_RETURN_IF_ERROR(Refresh());
  uint64_t step = 0;
  VARVE_RETURN_IF_ERROR(WithCatchUp([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
    VARVE_ASSIGN_OR_RETURN(const auto value,
                           database_->Get(Family::kMeta, keys::Tag(found.id, tag)));
    const auto number = value.has_value() ? DecodeNumber(*value) : std::nullopt;
    if (!number.has_value()) {
      return Status::NotFound("no tag " + std::string(tag) + " in run " + std::string(run));
    }
    step = *number;
    return Status::Ok();
  }));
  return step;
}

Status StoreImpl::CatchUp() const {
  if (frozen_ > 0) return Status::Ok();
  last_catch_up_ms_ = NowMs();
  return database_->CatchUp();
}

void StoreImpl::CatchUpBetweenCommits(const StoreImpl& reader) const {
  constexpr int kAttempts = 50;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t events = database_->num_ingest_events();
    const Status caught_up = reader.CatchUp();
    if (caught_up.ok() && events % 2 == 0 && events == database_->num_ingest_events()) return;
  }
  const auto commits = LockCommits();
  reader.CatchUp().IgnoreError();  // as in Refresh
}

Result<std::unique_ptr<StoreImpl>> StoreImpl::OpenBeside() const {
  VARVE_ASSIGN_OR_RETURN(auto reader, OpenPath(path_, options_, /*for_writing=*/false));
  CatchUpBetweenCommits(*reader);
  return reader;
}

Status StoreImpl::Refresh() const {
  if (database_->for_writing() || NowMs() - last_catch_up_ms_ < kRefreshMs) return Status::Ok();
  // A failure here only means older data; the read itself decides.
  CatchUp().IgnoreError();
  return Status::Ok();
}

Status StoreImpl::WithCatchUp(const std::function<Status()>& read) const {
  uint64_t events = database_->num_ingest_events();
  Status status = read();
  for (int attempt = 0; attempt < 3; ++attempt) {
    const StatusCode code = status.code();
    if (code != StatusCode::kNotFound && code != StatusCode::kIOError &&
        code != StatusCode::kCorruption) {
      break;
    }
    if (database_->for_writing()) {
      const bool saw_one_state = events % 2 == 0 && events == database_->num_ingest_events();
      if (saw_one_state) break;
      database_->AwaitCommits();
      events = database_->num_ingest_events();
    } else {
      CatchUp().IgnoreError();  // as in Refresh
    }
    status = read();
  }
  return status;
}

Status StoreImpl::WithFrozenView(const std::function<Status()>& read) const {
  return WithCatchUp([&] {
    ++frozen_;
    const Status status = read();
    --frozen_;
    return status;
  });
}

void StoreImpl::CatchUpLoop(std::stop_token stop) {
  std::unique_lock lock(background_mutex_);
  while (!stop.stop_requested()) {
    background_wake_.wait_for(lock, stop, kCatchUpInterval, [] { return false; });
    // Lets go of files that the writer has removed, even when nobody reads.
    if (!stop.stop_requested()) Guarded("catching up", [&] { return CatchUp(); }).IgnoreError();
  }
}

}  // namespace varve
