// SPDX-License-Identifier: Apache-2.0
//
// Opening and closing one store, and looking up its runs and steps.
#include "varve/store.h"

#include <rocksdb/convenience.h>

#include <algorithm>

#include "base/guarded.h"
#include "base/seconds_since.h"
#include "base/util.h"
#include "store/db/cursor.h"
#include "store/db/guarded_store.h"
#include "store/db/save_ids.h"
#include "store/db/sealer.h"
#include "store/db/spare_files.h"
#include "store/db/store_impl.h"
#include "store/db/writer_files.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

constexpr auto kCatchUpInterval = std::chrono::seconds(10);
constexpr int64_t kRefreshMs = 100;
constexpr int64_t kNeverMs = -kRefreshMs;

std::string NameOf(ListAddress list) {
  return "list " + std::to_string(list.save_id) + "/" + std::to_string(list.number);
}

// A run without a step is legal. But a reader that opens while the writer replaces a file may see
// one family empty for a moment. So it looks again before it believes that, as with anything
// missing.
constexpr std::string_view kNoStep = "no step in run ";
Status RunHasNoStep(std::string_view run) {
  return Status::NotFound(std::string(kNoStep) + std::string(run));
}
// nullopt: there is no key.
Result<std::optional<uint64_t>> StepOf(const std::optional<std::string>& key) {
  if (!key.has_value()) return std::optional<uint64_t>();
  const auto step = keys::ParseStep(*key);
  if (!step.has_value()) return Status::Corruption("family steps has a malformed key");
  return std::optional(step->step);
}

bool IsRunWithoutStep(const Status& status) {
  return status.code() == StatusCode::kNotFound && status.message().starts_with(kNoStep);
}

std::string Starting(const fs::path& store) {
  return "starting a thread for the store in " + store.string();
}

}  // namespace

Status RequireThread(const fs::path& store) {
  return Guarded(Starting(store), [] {
    std::jthread([] {}).join();
    return Status::Ok();
  });
}

Result<std::unique_ptr<StoreImpl>> StoreImpl::OpenPath(const fs::path& path,
                                                       const StoreOptions& options,
                                                       bool for_writing) {
  VARVE_ASSIGN_OR_RETURN(const FormatFile format, ReadFormatFile(path, for_writing));
  VARVE_RETURN_IF_ERROR(CompareFormatWithCopy(path, format));
  VARVE_ASSIGN_OR_RETURN(const auto sealer, MakeSealer(path, options, format, for_writing));
  VARVE_RETURN_IF_ERROR(RequireThread(path));
  auto database =
      for_writing ? Database::OpenForWriting(path, sealer) : Database::OpenForReading(path);
  if (for_writing && IsNoSpace(database.status())) {
    // Even opening takes a little space. The reserve gives it, so that steps can be dropped.
    ReleaseReserve(path);
    database = Database::OpenForWriting(path, sealer);
  }
  if (!database.ok()) return database.status();
  return Start(path, options, format, sealer, *std::move(database));
}

Result<std::shared_ptr<const Sealer>> StoreImpl::MakeSealer(const fs::path& path,
                                                            const StoreOptions& options,
                                                            const FormatFile& format,
                                                            bool for_writing) {
  if (!format.is_sealed() && !options.key.empty()) {
    return Status::FailedPrecondition(
        path.string() +
        " is not sealed, and a key was given. Copy it into a store that is made with the key "
        "(varve copy), or leave the key away");
  }
  if (format.is_sealed() && options.key.empty() && for_writing) {
    return Status::FailedPrecondition(path.string() +
                                      " is sealed, and no key was given. A writer needs the key "
                                      "(StoreOptions::key, varve --key-file)");
  }
  if (options.key.empty()) return std::shared_ptr<const Sealer>();
  return Sealer::Make(options.key, format);
}

Result<std::unique_ptr<StoreImpl>> StoreImpl::Start(const fs::path& path,
                                                    const StoreOptions& options,
                                                    const FormatFile& format,
                                                    std::shared_ptr<const Sealer> sealer,
                                                    std::unique_ptr<Database> database) {
  std::unique_ptr<StoreImpl> store(new GuardedStore<StoreImpl>);
  store->sealer_ = std::move(sealer);
  store->path_ = path;
  store->options_ = options;
  store->options_.max_delta_depth = std::clamp(options.max_delta_depth, 1, kMaxChain - 1);
  store->options_.max_replay_depth = std::clamp(options.max_replay_depth, 1, kMaxChain - 1);
  // Programs that do not know rANS may use the store, too.
  if ((format.incompatible & kRansFeature) == 0) store->options_.entropy = Entropy::kZstd;
  store->format_ = format;
  store->database_ = std::move(database);
  store->chunk_reader_ = std::make_unique<ChunkReader>(store->database_.get(), format.digest_seed);
  store->last_catch_up_ms_ = NowMs();
  if (store->database_->for_writing()) VARVE_RETURN_IF_ERROR(store->PrepareForWriting());
  VARVE_RETURN_IF_ERROR(Guarded(Starting(path), [&store] { return store->StartThreads(); }));
  return store;
}

Result<std::unique_ptr<StoreImpl>> StoreImpl::OpenFrozen(const std::string& name,
                                                         const FormatFile& format,
                                                         std::unique_ptr<Database> database,
                                                         const StoreOptions& options) {
  std::unique_ptr<StoreImpl> store(new GuardedStore<StoreImpl>);
  store->path_ = name;
  store->options_ = options;
  store->format_ = format;
  store->database_ = std::move(database);
  store->chunk_reader_ = std::make_unique<ChunkReader>(store->database_.get(), format.digest_seed);
  store->last_catch_up_ms_ = NowMs();
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

void StoreImpl::StopThreads() {
  inbox_loop_ = {};
  background_ = {};
}

StoreImpl::~StoreImpl() = default;

int StoreImpl::num_threads() const {
  if (options_.num_threads > 0) return options_.num_threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Status StoreImpl::PrepareForWriting() {
  VARVE_RETURN_IF_ERROR(ClearIncoming(path_));
  VARVE_RETURN_IF_ERROR(SweepOrphans());
  TidySpareFiles(path_);
  const Status reserve = EnsureReserve(path_);
  // A full disk must not keep anyone from opening the store to drop steps.
  return IsNoSpace(reserve) ? Status::Ok() : reserve;
}

// Deletes chunk files of saves that have no record and that nothing names. It looks at the bounds
// of files and at one record for each file. It reads all lists only when there are such files.
Status StoreImpl::SweepOrphans() {
  std::vector<ChunkFile> orphans;
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database_->BeginRead());
  // A damaged record keeps its files, and so do blocks whose record is lost.
  const auto is_there = [&](uint64_t first, uint64_t last) -> Result<bool> {
    for (std::string from = keys::Save(first);; from.push_back('\0')) {
      VARVE_ASSIGN_OR_RETURN(const auto key, database_->FirstKeyFrom(Family::kBirths, "", from));
      if (!key.has_value()) return false;
      if (const auto parsed = keys::ParseSave(*key)) return parsed->save_id <= last;
      from = *key;  // Check reports it
    }
  };
  for (const auto& file : database_->FilesOf(Family::kChunks)) {
    const auto first = keys::ParseChunk(file.smallestkey);
    const auto last = keys::ParseChunk(file.largestkey);
    if (!first.has_value() || !last.has_value()) continue;  // Check reports it
    VARVE_ASSIGN_OR_RETURN(const bool is_born, is_there(first->save_id, last->save_id));
    if (is_born) continue;
    ChunkFile& orphan = orphans.emplace_back();
    orphan.first = *first;
    orphan.last = *last;
  }
  // What cannot be read may name any of them. Check reports that, and it is no reason not to open.
  if (!RemoveNamed(&orphans).ok()) return Status::Ok();
  for (const ChunkFile& file : orphans) {
    const std::string first = keys::Chunk(file.first), last = keys::Chunk(file.last);
    const rocksdb::Slice begin(first), end(last);
    const rocksdb::Status status =
        rocksdb::DeleteFilesInRange(use.rocksdb(), use.handle(Family::kChunks), &begin, &end);
    VARVE_RETURN_IF_ERROR(FromRocksDb(status, "sweeping orphaned chunks"));
  }
  return Status::Ok();
}

// Takes out the files that hold a chunk which a list or a delta names, judged by the file's bounds.
// There the record of the save is lost, but the chunk is not. It fails when a list or a block
// cannot be read.
Status StoreImpl::RemoveNamed(std::vector<ChunkFile>* files) const {
  if (files->empty()) return Status::Ok();
  const auto remove = [files](ChunkAddress named) {
    std::erase_if(*files, [named](const ChunkFile& file) {
      return !(named < file.first) && !(file.last < named);
    });
  };
  VARVE_RETURN_IF_ERROR(
      database_->Scan(Family::kLists, "", [&](std::string_view, std::string_view value) {
        VARVE_ASSIGN_OR_RETURN(const std::vector<ChunkRef> refs, DecodeChunkList(value));
        for (const ChunkRef& ref : refs) {
          if (ref.NamesFrame()) remove(ref.address);
        }
        return Status::Ok();
      }));
  return database_->Scan(Family::kBirths, "", [&](std::string_view key, std::string_view value) {
    const auto parsed = keys::ParseSave(key);
    if (parsed.has_value() && !parsed->block.has_value()) return Status::Ok();
    VARVE_ASSIGN_OR_RETURN(const SaveBlock block, DecodeSaveBlock(value));
    for (const auto& edge : block.edges) remove(edge.base);
    return Status::Ok();
  });
}

Status StoreImpl::RequireWriter() const {
  if (database_->for_writing()) return Status::Ok();
  return Status::FailedPrecondition("the store in " + path_.string() + " is open for reading only");
}

Result<uint64_t> StoreImpl::NewSaveId() {
  const std::lock_guard lock(save_id_mutex_);
  if (next_save_id_ == reserved_save_ids_) {
    VARVE_ASSIGN_OR_RETURN(const auto value, database_->Get(Family::kMeta, keys::kNextBirth));
    const auto first = value.has_value() ? DecodeNumber(*value) : std::nullopt;
    if (!first.has_value() || *first == 0) {
      return Status::Corruption("meta key next_birth is missing or not a number");
    }
    CommitBatch batch;
    batch.Put(Family::kMeta, std::string(keys::kNextBirth), EncodeNumber(*first + kSaveBlock));
    VARVE_RETURN_IF_ERROR(batch.Commit(database_.get(), incoming(), {}));
    next_save_id_ = *first;
    reserved_save_ids_ = *first + kSaveBlock;
  }
  pins_.BeginSave(next_save_id_);
  return next_save_id_++;
}

Status StoreImpl::CommitCounted(const CommitBatch& batch, const ReferenceCounts& counts,
                                std::span<const fs::path> chunk_files) {
  const Status status = Commit(batch, chunk_files);
  if (!status.ok()) {
    dead_space_.Forget();  // its state is unknown after an error
    return status;
  }
  counts.VisitChanged(
      [this](uint64_t save_id, const SaveRecord* record) { dead_space_.Note(save_id, record); });
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

Result<std::vector<ChunkRef>> StoreImpl::ReadList(const TensorRecord& record, size_t index) const {
  const ListAddress list = record.lists[index];
  const ListGeometry geometry = record.GeometryOfList(index);
  std::vector<ChunkRef> refs;
  VARVE_RETURN_IF_ERROR(AppendList(list, geometry.num_chunks, nullptr, &refs));
  const Status fits = CheckFits(refs, geometry);
  if (!fits.ok()) return fits.WithContext(NameOf(list));
  return refs;
}

Status StoreImpl::AppendList(ListAddress list, uint64_t chunks, Cursor* lists,
                             std::vector<ChunkRef>* refs) const {
  const std::string key = keys::List(list);
  std::optional<std::string> alone;
  std::optional<std::string_view> value;
  if (lists != nullptr) {
    VARVE_ASSIGN_OR_RETURN(value, lists->Find(key));
  } else {
    VARVE_ASSIGN_OR_RETURN(alone, database_->Get(Family::kLists, key));
    value = alone;
  }
  if (!value.has_value()) return Status::Corruption(NameOf(list) + " is missing");
  const size_t before = refs->size();
  VARVE_RETURN_IF_ERROR(AppendChunkList(*value, refs));
  const uint64_t expected = std::min<uint64_t>(kChunksPerList, chunks);
  if (refs->size() - before == expected) return Status::Ok();
  return Status::Corruption(NameOf(list) + " names " + std::to_string(refs->size() - before) +
                            " chunks, expected " + std::to_string(expected));
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
  // Does not remember what changed during the read or is about to change.
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
  const auto read = [&] {
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
  };
  VARVE_RETURN_IF_ERROR(WithOneState(read));
  return runs;
}

Result<std::vector<CheckpointInfo>> StoreImpl::ListCheckpoints(std::string_view run) const {
  VARVE_RETURN_IF_ERROR(Refresh());
  std::vector<CheckpointInfo> infos;
  const auto read = [&]() -> Status {
    infos.clear();
    VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
    std::vector<std::pair<StepKey, StepRecord>> steps;
    VARVE_RETURN_IF_ERROR(
        database_->Scan(Family::kSteps, keys::RunPrefix(found.id),
                        [&](std::string_view key, std::string_view value) -> Status {
                          const auto step = keys::ParseStep(key);
                          if (!step.has_value())
                            return Status::Corruption("a malformed key in family steps");
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
  };
  const Status status = WithOneState(read);
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
  return StepOf(key);
}

Result<std::optional<uint64_t>> StoreImpl::NewestStepBefore(StepKey step) const {
  VARVE_ASSIGN_OR_RETURN(
      const auto key,
      database_->LastKeyBefore(Family::kSteps, keys::RunPrefix(step.run), keys::Step(step)));
  return StepOf(key);
}

Result<uint64_t> StoreImpl::FindTag(std::string_view run, std::string_view tag) const {
  VARVE_RETURN_IF_ERROR(Refresh());
  uint64_t step = 0;
  VARVE_RETURN_IF_ERROR(WithCatchUp([&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const RunRecord found, FindRun(run));
    VARVE_ASSIGN_OR_RETURN(const auto value,
                           database_->Get(Family::kMeta, keys::Tag(found.id, tag)));
    const std::string name = "tag " + std::string(tag) + " in run " + std::string(run);
    if (!value.has_value()) return Status::NotFound("no " + name);
    const auto number = DecodeNumber(*value);
    if (!number.has_value()) return Status::Corruption(name + ": its record is damaged");
    step = *number;
    return Status::Ok();
  }));
  return step;
}

Status StoreImpl::CatchUp() const {
  const int64_t asked = NowMs();
  const std::lock_guard lock(catch_up_mutex_);
  return last_catch_up_ms_ > asked ? Status::Ok() : CatchUpLocked();  // another thread did it
}

Status StoreImpl::CatchUpLocked() const {
  if (frozen_ > 0) return Status::Ok();
  const int64_t start = NowMs();
  Status status = database_->CatchUp();
  last_catch_up_ms_ = status.ok() ? start : kNeverMs;  // after an error the next read tries again
  return status;
}

Status StoreImpl::CatchUpBetweenCommits(const StoreImpl& reader) const {
  constexpr int kAttempts = 50;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t events = database_->num_ingest_events();
    VARVE_RETURN_IF_ERROR(reader.CatchUp());
    if (events % 2 == 0 && events == database_->num_ingest_events()) return Status::Ok();
  }
  const auto commits = LockCommits();
  return reader.CatchUp();
}

Result<std::unique_ptr<StoreImpl>> StoreImpl::OpenBeside() const {
  VARVE_ASSIGN_OR_RETURN(auto reader, OpenPath(path_, options_, /*for_writing=*/false));
  VARVE_RETURN_IF_ERROR(CatchUpBetweenCommits(*reader));
  return reader;
}

Status StoreImpl::Refresh() const {
  const int64_t last = last_catch_up_ms_;
  if (database_->for_writing() || NowMs() - last < kRefreshMs) return Status::Ok();
  // A thread that opens the database anew may take long. Until then what is shown is older, and
  // whole. After an error nobody knows.
  std::unique_lock lock(catch_up_mutex_, std::defer_lock);
  for (int64_t waited_ms = 0; last != kNeverMs && !lock.try_lock(); ++waited_ms) {
    if (waited_ms >= kRefreshMs) return Status::Ok();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!lock.owns_lock()) lock.lock();
  return last_catch_up_ms_ == last ? CatchUpLocked() : Status::Ok();
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
      const Status caught_up = CatchUp();
      // Then nobody knows whether it exists by now.
      if (!caught_up.ok()) return code == StatusCode::kNotFound ? caught_up : status;
    }
    status = read();
  }
  return status;
}

Status StoreImpl::TryOneState(const std::function<Status()>& read, bool* saw_one_state) const {
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    Status status = WithCatchUp([&] {
      const uint64_t events = database_->num_ingest_events();
      Status once = read();
      *saw_one_state = events % 2 == 0 && events == database_->num_ingest_events();
      return once;
    });
    if (*saw_one_state || attempt == kAttempts) return status;
    database_->AwaitCommits();
  }
}

Status StoreImpl::WithOneState(const std::function<Status()>& read) const {
  bool saw_one_state = false;
  Status status = TryOneState(read, &saw_one_state);
  return saw_one_state || database_->for_writing() ? status : WithoutCatchUps(read);
}

Status StoreImpl::WithoutCatchUps(const std::function<Status()>& read) const {
  return WithCatchUp([&] {
    const std::lock_guard lock(catch_up_mutex_);
    return read();
  });
}

Status StoreImpl::WithFrozenView(const std::function<Status()>& read) const {
  return WithCatchUp([&] {
    const Frozen frozen(this);
    return read();
  });
}

void StoreImpl::CatchUpLoop(std::stop_token stop) {
  std::unique_lock lock(background_mutex_);
  while (!stop.stop_requested()) {
    background_wake_.wait_for(lock, stop, kCatchUpInterval, [] { return false; });
    // Releases files that the writer has removed, even when nobody reads. The next read reports an
    // error.
    if (!stop.stop_requested()) Guarded("catching up", [&] { return CatchUp(); }).IgnoreError();
  }
}

}  // namespace varve::internal
