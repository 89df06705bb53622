// SPDX-License-Identifier: Apache-2.0
//
// Frees the space of dead chunks, and keeps the number of chunk files small. Dead frames are never
// deleted one by one, because tombstones would make compactions rewrite everything between them. A
// file without a live frame is deleted whole. A file that is more than half dead is rewritten
// without its dead frames, so garbage never exceeds live bytes. The bytes freed that way are the
// budget for rewriting files that are less than half dead. Which frames share a file depends on how
// the background merged them. The amount of garbage that stays must not depend on that.
#include <rocksdb/convenience.h>
#include <rocksdb/table_properties.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "base/guarded.h"
#include "base/low_priority.h"
#include "base/stop.h"
#include "base/util.h"
#include "store/db/store_impl.h"
#include "store/db/writer_files.h"
#include "store/ops/reclaim_plan.h"

namespace varve::internal {

namespace {

// Small files are merged once this many of them lie side by side.
constexpr size_t kMergeWidth = 16;
// The very small ones are merged first, then the results of that, up to files of decent size.
constexpr uint64_t kMergeLimits[] = {uint64_t{1} << 20, uint64_t{16} << 20, kChunkFileBytes / 2};
constexpr int kCommitsBetweenMerges = 8;
// A metadata family with this many files has outrun RocksDB's own merging.
constexpr size_t kMaxMetadataFiles = 24;
// With this many it is merged whatever that costs. All files are open, and each read looks into all
// of a family.
constexpr size_t kFarTooManyFiles = 40;

// A commit that meets an error opens the database again. For that it stops rewrites, and these
// return kAborted.
Status FromCompaction(const rocksdb::Status& status, const std::string& what) {
  if (status.IsManualCompactionPaused()) return Status::Aborted(what + " was stopped");
  return FromRocksDb(status, what);
}

// Rewrites files of the last level into it.
Status Rewrite(Database* database, const std::vector<std::string>& names) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
  VARVE_RETURN_IF_ERROR(database->CompareTags(names));
  rocksdb::CompactionOptions options;
  options.compression = rocksdb::kNoCompression;
  options.output_file_size_limit = kChunkFileBytes;
  auto* handle = use.handle(Family::kChunks);
  return FromCompaction(use.rocksdb()->CompactFiles(options, handle, names, /*output_level=*/1),
                        "rewriting chunk files");
}

Status DeleteFile(Database* database, const ChunkFile& file) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
  const std::string first = keys::Chunk(file.first), last = keys::Chunk(file.last);
  const rocksdb::Slice begin(first), end(last);
  return FromRocksDb(
      rocksdb::DeleteFilesInRange(use.rocksdb(), use.handle(Family::kChunks), &begin, &end),
      "deleting chunk file " + file.name);
}

Status RewriteWithout(Database* database, const ChunkFile& file,
                      const std::vector<ChunkAddress>& dead) {  // sorted
  database->dead_chunk_filter()->SetPredicate(
      std::make_shared<const DeadChunkFilterFactory::IsDead>([&dead](ChunkAddress address) {
        return std::binary_search(dead.begin(), dead.end(), address);
      }));
  const Status status =
      Guarded("rewriting a chunk file", [&] { return Rewrite(database, {file.name}); });
  database->dead_chunk_filter()->SetPredicate(nullptr);  // whatever was thrown: `dead` goes
  return status;
}

// The frames of one file, counted.
struct FileUse {
  uint64_t live_chunks = 0;
  uint64_t dead_bytes = 0;
  std::vector<ChunkAddress> dead;
};

// Saves within the bounds of a file.
Result<std::set<uint64_t>> SavesIn(const ChunkFile& file, const Database& database) {
  std::set<uint64_t> saves;
  VARVE_ASSIGN_OR_RETURN(const Database::Use held, database.BeginRead());
  const std::unique_ptr<rocksdb::Iterator> it(
      held.rocksdb()->NewIterator(rocksdb::ReadOptions(), held.handle(Family::kBirths)));
  for (it->Seek(keys::Save(file.first.save_id)); it->Valid(); it->Next()) {
    const auto parsed = keys::ParseSave({it->key().data(), it->key().size()});
    if (!parsed.has_value()) return Status::Corruption("a malformed key in family births");
    if (parsed->save_id > file.last.save_id) break;
    if (!parsed->block.has_value()) saves.insert(parsed->save_id);
  }
  VARVE_RETURN_IF_ERROR(FromRocksDb(it->status(), "reading saves"));
  return saves;
}

// Counts the live frames of `file` from the counts of its saves. The cost grows with the saves in
// the file.
Result<FileUse> MeasureFile(const ChunkFile& file, const std::set<uint64_t>& saves,
                            ReferenceCounts* counts) {
  FileUse use;
  for (const uint64_t save_id : saves) {
    const Result<const SaveRecord*> found = counts->Save(save_id);
    if (found.status().code() == StatusCode::kNotFound) continue;  // a drop took its last list
    if (found.status().code() == StatusCode::kCorruption) {        // what is not known lives
      ++use.live_chunks;
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const SaveRecord* const record, found);
    const uint32_t begin = save_id == file.first.save_id ? file.first.ordinal : 0;
    const uint32_t end = save_id == file.last.save_id
                             ? std::min(record->chunks, file.last.ordinal + 1)
                             : record->chunks;
    for (uint32_t ordinal = begin; ordinal < end; ++ordinal) {
      const Result<uint32_t> count = counts->ChunkCount({save_id, ordinal});
      if (!count.ok() && count.status().code() != StatusCode::kCorruption) return count.status();
      if (count.ok() && *count == 0) continue;
      if (!count.ok() || (*count & kDeadBit) == 0) {
        ++use.live_chunks;
      } else {
        use.dead_bytes += *count & kMaxCount;
        use.dead.push_back({save_id, ordinal});
      }
    }
  }
  return use;
}

// True when `bytes` can be written, and what RocksDB writes with them. A disk that does not tell
// its free space counts as large enough.
bool HasRoom(const std::filesystem::path& store, uint64_t bytes) {
  constexpr uint64_t kBeside = uint64_t{1} << 20;
  std::error_code error;
  const auto space = std::filesystem::space(store, error);
  return error || space.available >= bytes + kBeside;
}

// A compaction that does not wait until those of other families have ended.
rocksdb::CompactRangeOptions BesideOthers() {
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  return options;
}

uint64_t BytesOf(const std::vector<rocksdb::LiveFileMetaData>& files) {
  uint64_t bytes = 0;
  for (const auto& file : files) bytes += file.size;
  return bytes;
}

// A tombstone and the record that it hides are both garbage. A family that is half garbage is
// compacted, so a record is rewritten only after as many others have died. A family for which there
// is no room waits.
Status CompactMetadata(Database* database, const std::filesystem::path& store, bool all) {
  for (int i = 0; i < kNumFamilies; ++i) {
    const auto family = static_cast<Family>(i);
    if (family == Family::kChunks) continue;
    VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
    const uint64_t bytes = BytesOf(database->FilesOf(family));
    // The metadata of files counts only what this process has written.
    rocksdb::TablePropertiesCollection tables;
    VARVE_RETURN_IF_ERROR(
        FromRocksDb(use.rocksdb()->GetPropertiesOfAllTables(use.handle(family), &tables),
                    "reading the totals of family " + std::string(kFamilyNames[i])));
    uint64_t entries = 0, deletions = 0;
    for (const auto& [path, table] : tables) {
      entries += table->num_entries;
      deletions += table->num_deletions;
    }
    const bool wanted = all ? deletions > 0 : 4 * deletions > entries;
    if (!wanted || !HasRoom(store, bytes)) continue;
    VARVE_RETURN_IF_ERROR(FromCompaction(
        use.rocksdb()->CompactRange(BesideOthers(), use.handle(family), nullptr, nullptr),
        "compacting family " + std::string(kFamilyNames[i])));
  }
  return Status::Ok();
}

// Merging a family writes all of it anew, and so its largest file. That is worth it only once the
// others have become a quarter of it. RocksDB merges the small ones among themselves.
bool IsWorthMerging(const std::vector<rocksdb::LiveFileMetaData>& files) {
  if (files.size() < kMaxMetadataFiles) return false;
  uint64_t largest = 0;
  for (const auto& file : files) largest = std::max<uint64_t>(largest, file.size);
  return files.size() >= kFarTooManyFiles || 4 * (BytesOf(files) - largest) >= largest;
}

// RocksDB merges these families by itself, but a process that lives for one save ends before it has
// finished.
Status MergeMetadata(Database* database, const std::filesystem::path& store) {
  for (int i = 0; i < kNumFamilies; ++i) {
    const auto family = static_cast<Family>(i);
    VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
    const auto files = database->FilesOf(family);
    if (family == Family::kChunks || !IsWorthMerging(files)) continue;
    if (!HasRoom(store, BytesOf(files))) continue;
    VARVE_RETURN_IF_ERROR(FromRocksDb(
        use.rocksdb()->CompactRange(BesideOthers(), use.handle(family), nullptr, nullptr),
        "merging family " + std::string(kFamilyNames[i])));
  }
  return Status::Ok();
}

// The most chunks, and the most saves, whose frames one commit marks as gone.
constexpr size_t kGoneAtOnce = 4096;
constexpr size_t kSaveIdsAtOnce = 512;

// Counts one more while it lives.
class UnderWay {
 public:
  explicit UnderWay(std::atomic<int>* counter) : counter_(counter) { ++*counter_; }
  ~UnderWay() { --*counter_; }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  std::atomic<int>* const counter_;
};

}  // namespace

Result<ReclaimReport> StoreImpl::Reclaim(const ReclaimOptions& options) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  const UnderWay reclaiming(&reclaims_);
  const std::lock_guard maintenance(maintenance_mutex_);
  const uint64_t disk_before = MeasureFolder(path_).allocated_bytes;
  VARVE_ASSIGN_OR_RETURN(ReclaimReport report, ReclaimInTurn(options));
  report.disk_bytes_before = disk_before;
  return report;
}

// A trainer drops steps between its saves. It waits for merging, which is short, but not for a
// reclaim that another thread has asked for. That reclaim, or the next, finds what the drop leaves.
Result<std::optional<ReclaimReport>> StoreImpl::ReclaimUnlessUnderWay() {
  std::unique_lock maintenance(maintenance_mutex_, std::defer_lock);
  while (!maintenance.try_lock()) {
    if (reclaims_ > 0) return std::optional<ReclaimReport>();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  VARVE_ASSIGN_OR_RETURN(ReclaimReport report, ReclaimInTurn({}));
  return std::optional(report);
}

// Call it under the maintenance mutex. Commits go on meanwhile. The caller knows what was on disk
// before.
Result<ReclaimReport> StoreImpl::ReclaimInTurn(const ReclaimOptions& options) {
  ReclaimReport report;
  Status reclaimed = ReclaimFiles(options, &report);
  if (IsNoSpace(reclaimed)) {
    ReleaseReserve(path_);
    reclaimed = database_->Heal();
    if (reclaimed.ok()) reclaimed = ReclaimFiles(options, &report);
  }
  VARVE_RETURN_IF_ERROR(reclaimed);
  const Status compacted = CompactMetadata(database_.get(), path_, options.all);
  // Garbage in the metadata can wait until the disk has space.
  const bool may_wait = IsNoSpace(compacted) || compacted.code() == StatusCode::kAborted;
  VARVE_RETURN_IF_ERROR(may_wait ? database_->Heal() : compacted);
  // Does the merging that the background has not come to yet, but not on a disk that is nearly
  // full.
  if (HasRoom(path_, 2 * kChunkFileBytes)) MergeLocked().IgnoreError();
  VARVE_ASSIGN_OR_RETURN(report.pending_bytes, DeadBytes());
  report.disk_bytes_after = MeasureFolder(path_).allocated_bytes;
  return report;
}

// A writer reads all records of saves once, when it first frees space. No commit waits for that.
Status StoreImpl::LearnDeadSpace() {
  const std::lock_guard learning(learn_mutex_);
  {
    const auto lock = LockCommits();
    if (dead_space_.is_known()) return Status::Ok();
    dead_space_.BeginLearning();
  }
  DeadSpace learned;
  const Status status = learned.Load(*database_);
  const auto lock = LockCommits();
  if (!status.ok()) dead_space_.Forget();
  VARVE_RETURN_IF_ERROR(status);
  dead_space_.Adopt(std::move(learned));
  return Status::Ok();
}

Result<uint64_t> StoreImpl::DeadBytes() {
  VARVE_RETURN_IF_ERROR(LearnDeadSpace());
  const auto lock = LockCommits();
  ReferenceCounts counts(database_.get());
  VARVE_RETURN_IF_ERROR(dead_space_.Refresh(*database_, &counts));
  return dead_space_.DeadBytes();
}

Result<std::vector<ChunkFile>> StoreImpl::chunk_files_for_test() {
  const auto lock = LockCommits();
  ReferenceCounts counts(database_.get());
  VARVE_RETURN_IF_ERROR(dead_space_.Refresh(*database_, &counts));
  return dead_space_.Files();
}

// Changes the files first, then the counts that say that frames are gone. A crash in between leaves
// frames counted as dead that are gone already. They are marked when a reclaim comes to their saves
// again. Files are deleted and rewritten without the commit mutex. It is held only to learn what is
// dead, and to write the counts.
Status StoreImpl::ReclaimFiles(const ReclaimOptions& options, ReclaimReport* report) {
  VARVE_RETURN_IF_ERROR(LearnDeadSpace());
  std::vector<ChunkFile> files;
  std::vector<ChunkAddress> gone;
  {
    const auto lock = LockCommits();
    ReferenceCounts counts(database_.get());
    VARVE_RETURN_IF_ERROR(dead_space_.Refresh(*database_, &counts));
    files = dead_space_.Files();
    for (const uint64_t save_id : dead_space_.Leftovers()) {
      const Result<const SaveRecord*> record = counts.Save(save_id);
      const StatusCode code = record.status().code();
      if (code == StatusCode::kCorruption || code == StatusCode::kNotFound)
        continue;  // Check says so
      if (!record.ok()) return record.status();
      for (uint32_t ordinal = 0; ordinal < (*record)->chunks; ++ordinal) {
        const Result<uint32_t> count = counts.ChunkCount({save_id, ordinal});
        if (!count.ok() && count.status().code() != StatusCode::kCorruption) return count.status();
        if (count.ok() && (*count & kDeadBit) != 0) gone.push_back({save_id, ordinal});
      }
    }
  }
  const ReclaimPlan plan = PlanReclaim(std::move(files), options.all);
  const Status freed = FreeFiles(plan, options.progress, &gone, report);
  const Status marked = MarkGone(&gone);
  return freed.ok() ? marked : freed;
}

Status StoreImpl::FreeFiles(const ReclaimPlan& plan, const Progress& progress,
                            std::vector<ChunkAddress>* gone, ReclaimReport* report) {
  const StopFlag stop;
  for (const ChunkFile& file : plan.deleted) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    VARVE_RETURN_IF_ERROR(FreeFile(file, /*may_rewrite=*/false, gone, report));
  }
  // Rewriting needs space for the live rest. So it comes after the deletions, starts with the
  // smallest rest, and uses the reserve on a full disk. Without space the frames stay for later. It
  // checks the space beforehand, because RocksDB needs some more to open again after a failed
  // write.
  uint64_t done = 0, total = 0;
  for (const ChunkFile& file : plan.rewritten) total += RestOf(file);
  for (const ChunkFile& file : plan.rewritten) {
    VARVE_RETURN_IF_ERROR(stop.Check());
    if (progress) progress(done, total);
    done += RestOf(file);
    if (!HasRoom(path_, RestOf(file))) ReleaseReserve(path_);
    if (!HasRoom(path_, RestOf(file))) continue;
    VARVE_RETURN_IF_ERROR(FreeFile(file, /*may_rewrite=*/true, gone, report));
  }
  if (progress && total > 0) progress(total, total);
  return Status::Ok();
}

// Frames that a save in progress may rely on stay. While the saves are claimed, no save can come to
// rely on them. So what is dead stays dead, and its counts are read and its frames removed while
// commits go on. What dies meanwhile stays for the next time.
Status StoreImpl::FreeFile(const ChunkFile& file, bool may_rewrite, std::vector<ChunkAddress>* gone,
                           ReclaimReport* report) {
  VARVE_ASSIGN_OR_RETURN(const std::set<uint64_t> saves, SavesIn(file, *database_));
  if (!pins_.BeginReclaim(saves)) return Status::Ok();
  const Status status = Guarded(
      "freeing a chunk file", [&] { return FreeClaimed(file, saves, may_rewrite, gone, report); });
  pins_.EndReclaim();
  const bool may_wait = IsNoSpace(status) || status.code() == StatusCode::kAborted;
  if (may_wait && may_rewrite) return database_->Heal();
  VARVE_RETURN_IF_ERROR(status);
  return gone->size() < kGoneAtOnce ? Status::Ok() : MarkGone(gone);
}

Status StoreImpl::FreeClaimed(const ChunkFile& file, const std::set<uint64_t>& saves,
                              bool may_rewrite, std::vector<ChunkAddress>* gone,
                              ReclaimReport* report) {
  ReferenceCounts counts(database_.get());
  VARVE_ASSIGN_OR_RETURN(const FileUse use, MeasureFile(file, saves, &counts));
  // Frames that no record counts stay.
  const bool is_dead = use.live_chunks == 0 && use.dead.size() >= file.frames;
  if (use.dead.empty() || (!is_dead && !may_rewrite)) return Status::Ok();
  if (is_dead) {
    VARVE_RETURN_IF_ERROR(DeleteFile(database_.get(), file));
  } else {
    VARVE_RETURN_IF_ERROR(RewriteWithout(database_.get(), file, use.dead));
    report->rewritten_bytes += file.bytes - std::min(file.bytes, use.dead_bytes);
  }
  report->freed_bytes += use.dead_bytes;
  gone->insert(gone->end(), use.dead.begin(), use.dead.end());
  return Status::Ok();
}

// Notes in the counts that these frames are gone, and removes saves of which nothing is left. Each
// commit takes a bounded number of them, so that other commits have their turn.
Status StoreImpl::MarkGone(std::vector<ChunkAddress>* gone) {
  for (auto at = gone->cbegin(); at != gone->cend();) {
    auto next = at;
    VARVE_RETURN_IF_ERROR(CommitBuilt([&](ReferenceCounts* counts, CommitBatch* batch) -> Status {
      std::set<uint64_t> saves;
      next = at;
      for (size_t n = 0; next != gone->cend() && n < kGoneAtOnce && saves.size() < kSaveIdsAtOnce;
           ++n) {
        saves.insert(next->save_id);
        VARVE_RETURN_IF_ERROR(counts->MarkGone(*next++));
      }
      return counts->WriteTo(batch);
    }));
    at = next;
  }
  gone->clear();
  return Status::Ok();
}

// This thread has low priority, because a trainer may be waiting for a save that needs the
// processors.
void StoreImpl::MergeLoop(std::stop_token stop) {
  LowerThreadPriority();
  std::unique_lock lock(background_mutex_);
  while (true) {
    if (!background_wake_.wait(lock, stop,
                               [&] { return commits_since_merge_ >= kCommitsBetweenMerges; })) {
      return;
    }
    commits_since_merge_ = 0;
    lock.unlock();
    // Merging is housekeeping. If it fails now, for example on a full disk, it is tried again
    // later.
    Guarded("merging", [&] { return MergeSmallFiles(); }).IgnoreError();
    lock.lock();
  }
}

// Merging changes no key, so commits may go on meanwhile. A run of adjacent small files becomes one
// file. Sizes grow by a factor of sixteen from tier to tier, so each byte is rewritten only a few
// times.
Status StoreImpl::MergeSmallFiles() {
  const std::lock_guard maintenance(maintenance_mutex_);
  return MergeLocked();
}

Status StoreImpl::MergeLocked() {
  for (const uint64_t limit : kMergeLimits) {
    VARVE_ASSIGN_OR_RETURN(const std::vector<ChunkFile> files, ListChunkFiles(*database_));
    std::vector<std::string> run;
    uint64_t run_bytes = 0;
    // A save in progress will add a file of its save. No file around that may be merged.
    const uint64_t lowest_open = pins_.LowestOpenSave();
    for (size_t i = 0; i <= files.size(); ++i) {
      if (i < files.size() && files[i].bytes < limit && files[i].last.save_id < lowest_open) {
        run.push_back(files[i].name);
        run_bytes += files[i].bytes;
        continue;
      }
      // A full disk may have just enough room for a drop. Merging must not take it.
      if (run.size() >= kMergeWidth && HasRoom(path_, run_bytes)) {
        VARVE_RETURN_IF_ERROR(Rewrite(database_.get(), run));
      }
      run.clear();
      run_bytes = 0;
    }
  }
  return MergeMetadata(database_.get(), path_);
}

}  // namespace varve::internal
