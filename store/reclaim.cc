// SPDX-License-Identifier: Apache-2.0
//
// Giving the space of dead chunks back, and keeping the number of chunk files small. Dead frames
// are never deleted one by one: tombstones would make compactions rewrite everything between them.
// A file without a live frame is deleted whole; one more than half dead is rewritten without its
// dead frames, so garbage never exceeds live bytes. What is freed so pays for rewriting files that
// are less than half dead: which frames share a file, and so how much garbage stays, is up to how
// the background merged them, and must not matter.
#include <rocksdb/convenience.h>

#include <algorithm>
#include <utility>

#include "store/guarded.h"
#include "store/store_impl.h"
#include "store/util.h"

namespace varve {
namespace {

// Small files are merged once this many of them lie side by side ...
constexpr size_t kMergeWidth = 16;
// ... first the very small, then what became of those, up to files of decent size.
constexpr uint64_t kMergeLimits[] = {uint64_t{1} << 20, uint64_t{16} << 20, kChunkFileBytes / 2};
constexpr int kCommitsBetweenMerges = 8;
// A metadata family with this many files has outrun RocksDB's own merging.
constexpr size_t kMaxMetadataFiles = 24;

struct ChunkFile {
  std::string name;
  uint64_t bytes = 0;
  ChunkAddress first;
  ChunkAddress last;

  bool operator<(const ChunkFile& other) const { return first < other.first; }
};

Result<std::vector<ChunkFile>> ListChunkFiles(const Database& database) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database.BeginRead());
  rocksdb::ColumnFamilyMetaData family;
  database.rocksdb()->GetColumnFamilyMetaData(database.handle(Family::kChunks), &family);
  std::vector<ChunkFile> files;
  for (const auto& level : family.levels) {
    for (const auto& file : level.files) {
      const auto first = keys::ParseChunk(file.smallestkey);
      const auto last = keys::ParseChunk(file.largestkey);
      if (!first.has_value() || !last.has_value()) {
        return Status::Corruption("chunk file " + file.name + " has malformed keys");
      }
      files.push_back({file.name, file.size, *first, *last});
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Rewrites files of the last level into it.
Status Rewrite(Database* database, const std::vector<std::string>& names) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
  rocksdb::CompactionOptions options;
  options.compression = rocksdb::kNoCompression;
  options.output_file_size_limit = kChunkFileBytes;
  auto* handle = database->handle(Family::kChunks);
  return FromRocksDb(database->rocksdb()->CompactFiles(options, handle, names, /*output_level=*/1),
                     "rewriting chunk files");
}

Status DeleteFile(Database* database, const ChunkFile& file) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
  const std::string first = keys::Chunk(file.first), last = keys::Chunk(file.last);
  const rocksdb::Slice begin(first), end(last);
  return FromRocksDb(rocksdb::DeleteFilesInRange(database->rocksdb(),
                                                 database->handle(Family::kChunks), &begin, &end),
                     "deleting chunk file " + file.name);
}

Status RewriteWithout(Database* database, const ChunkFile& file,
                      const std::vector<ChunkAddress>& dead) {  // sorted
  database->dead_chunk_filter()->SetPredicate(
      std::make_shared<const DeadChunkFilterFactory::IsDead>([&dead](ChunkAddress address) {
        return std::binary_search(dead.begin(), dead.end(), address);
      }));
  const Status status = Rewrite(database, {file.name});
  database->dead_chunk_filter()->SetPredicate(nullptr);
  return status;
}

// The frames of one file, counted.
struct FileUse {
  uint64_t live_chunks = 0;
  uint64_t dead_bytes = 0;
  std::vector<ChunkAddress> dead;
  std::set<uint64_t> births;
};

// Counts the frames of `file` by the records of its births. Cost: the births in the file.
Result<FileUse> MeasureFile(const ChunkFile& file, const Database& database,
                            ReferenceCounts* counts) {
  FileUse use;
  std::vector<std::pair<uint64_t, uint32_t>> births;  // with the number of their chunks
  VARVE_ASSIGN_OR_RETURN(const Database::Use held, database.BeginRead());
  const std::unique_ptr<rocksdb::Iterator> it(
      database.rocksdb()->NewIterator(rocksdb::ReadOptions(), database.handle(Family::kBirths)));
  for (it->Seek(keys::Birth(file.first.birth)); it->Valid(); it->Next()) {
    const auto parsed = keys::ParseBirth({it->key().data(), it->key().size()});
    if (!parsed.has_value()) return Status::Corruption("a malformed key in family births");
    if (parsed->birth > file.last.birth) break;
    if (parsed->block.has_value()) continue;
    const Result<const BirthRecord*> birth = counts->Birth(parsed->birth);
    if (!birth.ok()) {  // what is not known lives
      if (birth.status().code() != StatusCode::kCorruption) return birth.status();
      ++use.live_chunks;
      continue;
    }
    births.emplace_back(parsed->birth, (*birth)->chunks);
  }
  VARVE_RETURN_IF_ERROR(FromRocksDb(it->status(), "reading births"));
  for (const auto& [birth, chunks] : births) {
    use.births.insert(birth);
    const uint32_t begin = birth == file.first.birth ? file.first.ordinal : 0;
    const uint32_t end =
        birth == file.last.birth ? std::min(chunks, file.last.ordinal + 1) : chunks;
    for (uint32_t ordinal = begin; ordinal < end; ++ordinal) {
      const Result<uint32_t> count = counts->ChunkCount({birth, ordinal});
      if (!count.ok() && count.status().code() != StatusCode::kCorruption) return count.status();
      if (count.ok() && *count == 0) continue;
      if (!count.ok() || (*count & kDeadBit) == 0) {
        ++use.live_chunks;
      } else {
        use.dead_bytes += *count & kMaxCount;
        use.dead.push_back({birth, ordinal});
      }
    }
  }
  return use;
}

// A file that has dead frames.
struct DeadFile {
  const ChunkFile* file;
  FileUse use;

  uint64_t Rest() const { return file->bytes - std::min(file->bytes, use.dead_bytes); }
};

// What a reclaim does with the files that have dead frames.
struct ReclaimPlan {
  std::vector<DeadFile> deleted;
  std::vector<DeadFile> rewritten;  // the smallest rest first
  std::vector<DeadFile> kept;
};

// What a reclaim may rewrite beyond what it frees: so that a store of no more than this, whose files
// are merged as it happens, never keeps more than a seventh of it as garbage.
constexpr uint64_t kRewriteAllowance = 16 << 20;

// In all no more is rewritten than is freed and the allowance, and no file for less than an eighth of
// it.
ReclaimPlan MakePlan(std::vector<DeadFile> files, bool all) {
  ReclaimPlan plan;
  uint64_t freed = 0, rewritten = 0;
  std::stable_sort(files.begin(), files.end(), [](const DeadFile& a, const DeadFile& b) {
    return static_cast<double>(a.use.dead_bytes) / static_cast<double>(a.file->bytes) >
           static_cast<double>(b.use.dead_bytes) / static_cast<double>(b.file->bytes);
  });
  const auto is_worth_it = [&](const DeadFile& file) {
    return file.use.dead_bytes >= file.file->bytes / 8 &&
           rewritten + file.Rest() <= freed + file.use.dead_bytes + kRewriteAllowance;
  };
  for (DeadFile& file : files) {
    const bool is_dead = file.use.live_chunks == 0;
    if (!is_dead && !all && !is_worth_it(file)) {
      plan.kept.push_back(std::move(file));
      continue;
    }
    freed += file.use.dead_bytes;
    if (!is_dead) rewritten += file.Rest();
    (is_dead ? plan.deleted : plan.rewritten).push_back(std::move(file));
  }
  std::stable_sort(plan.rewritten.begin(), plan.rewritten.end(),
                   [](const DeadFile& a, const DeadFile& b) { return a.Rest() < b.Rest(); });
  return plan;
}

// A tombstone and the record it hides are both garbage. A family that is half garbage is compacted,
// so that a record is rewritten only after as many others have died.
Status CompactMetadata(Database* database, bool all) {
  for (int i = 0; i < kNumFamilies; ++i) {
    const auto family = static_cast<Family>(i);
    if (family == Family::kChunks) continue;
    VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
    rocksdb::ColumnFamilyMetaData files;
    database->rocksdb()->GetColumnFamilyMetaData(database->handle(family), &files);
    uint64_t entries = 0, deletions = 0;
    for (const auto& level : files.levels) {
      for (const auto& file : level.files) {
        entries += file.num_entries;
        deletions += file.num_deletions;
      }
    }
    const bool wanted = all ? deletions > 0 : 4 * deletions > entries;
    if (!wanted) continue;
    VARVE_RETURN_IF_ERROR(
        FromRocksDb(database->rocksdb()->CompactRange(rocksdb::CompactRangeOptions(),
                                                      database->handle(family), nullptr, nullptr),
                    "compacting family " + std::string(kFamilyNames[i])));
  }
  return Status::Ok();
}

// RocksDB merges these families by itself, but not to the end in a process that lives for one save.
Status MergeMetadata(Database* database) {
  for (int i = 0; i < kNumFamilies; ++i) {
    const auto family = static_cast<Family>(i);
    VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
    rocksdb::ColumnFamilyMetaData files;
    database->rocksdb()->GetColumnFamilyMetaData(database->handle(family), &files);
    if (family == Family::kChunks || files.file_count < kMaxMetadataFiles) continue;
    VARVE_RETURN_IF_ERROR(
        FromRocksDb(database->rocksdb()->CompactRange(rocksdb::CompactRangeOptions(),
                                                      database->handle(family), nullptr, nullptr),
                    "merging family " + std::string(kFamilyNames[i])));
  }
  return Status::Ok();
}

bool Overlaps(const ChunkFile& file, const std::set<uint64_t>& births) {
  const auto it = births.lower_bound(file.first.birth);
  return it != births.end() && *it <= file.last.birth;
}

// `files` must outlive the plan.
Result<ReclaimPlan> PlanReclaim(const std::vector<ChunkFile>& files,
                                const std::set<uint64_t>& births_with_dead,
                                const Database& database, ReferenceCounts* counts, bool all) {
  std::vector<DeadFile> dead;
  for (const ChunkFile& file : files) {
    if (!Overlaps(file, births_with_dead)) continue;
    VARVE_ASSIGN_OR_RETURN(FileUse use, MeasureFile(file, database, counts));
    if (!use.dead.empty()) dead.push_back({&file, std::move(use)});
  }
  return MakePlan(std::move(dead), all);
}

}  // namespace

Result<ReclaimReport> StoreImpl::Reclaim(const ReclaimOptions& options) {
  VARVE_RETURN_IF_ERROR(RequireWriter());
  ReclaimReport report;
  report.disk_bytes_before = MeasureFolder(path_).allocated_bytes;
  {
    const std::lock_guard maintenance(maintenance_mutex_);
    const auto lock = LockCommits();
    Status reclaimed = ReclaimLocked(options.all, &report);
    if (IsNoSpace(reclaimed)) {
      ReleaseReserve();
      reclaimed = database_->Heal();
      if (reclaimed.ok()) reclaimed = ReclaimLocked(options.all, &report);
    }
    VARVE_RETURN_IF_ERROR(reclaimed);
    const Status compacted = CompactMetadata(database_.get(), options.all);
    // Garbage in the metadata may wait for a disk with space on it.
    VARVE_RETURN_IF_ERROR(IsNoSpace(compacted) ? database_->Heal() : compacted);
  }
  {
    // What the background has not come to yet; it is not waited for on a disk that is nearly full.
    const std::lock_guard maintenance(maintenance_mutex_);
    std::error_code error;
    const auto space = std::filesystem::space(path_, error);
    if (!error && space.available > 2 * kChunkFileBytes) MergeLocked().IgnoreError();
  }
  VARVE_ASSIGN_OR_RETURN(report.pending_bytes, PendingBytes());
  report.disk_bytes_after = MeasureFolder(path_).allocated_bytes;
  return report;
}

// Order: first the files, then the counts that say they are gone. A crash in between leaves frames
// counted as dead that are gone already; the next reclaim finds no file for them and says so.
Status StoreImpl::ReclaimLocked(bool all, ReclaimReport* report) {
  if (births_with_dead_.empty()) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const std::vector<ChunkFile> files, ListChunkFiles(*database_));
  ReferenceCounts counts(database_.get());
  VARVE_ASSIGN_OR_RETURN(const ReclaimPlan plan,
                         PlanReclaim(files, births_with_dead_, *database_, &counts, all));
  std::set<ChunkAddress> kept_dead;  // dead frames that stay on disk
  const auto keep = [&](const DeadFile& file) {
    kept_dead.insert(file.use.dead.begin(), file.use.dead.end());
  };
  for (const DeadFile& file : plan.kept) keep(file);
  for (const DeadFile& file : plan.deleted) {
    if (!pins_.BeginReclaim(file.use.births)) {
      keep(file);
      continue;
    }
    const Status deleted = DeleteFile(database_.get(), *file.file);
    pins_.EndReclaim();
    VARVE_RETURN_IF_ERROR(deleted);
    report->freed_bytes += file.use.dead_bytes;
  }
  // Rewriting needs space for the live rest, so it comes after the deletions and the smallest rest
  // first, on a full disk from the reserve. Without space the frames stay for later.
  for (const DeadFile& file : plan.rewritten) {
    Status rewritten = Status::Aborted("pinned");
    if (pins_.BeginReclaim(file.use.births)) {
      rewritten = RewriteWithout(database_.get(), *file.file, file.use.dead);
      if (IsNoSpace(rewritten)) {
        ReleaseReserve();
        rewritten = database_->Heal();
        if (rewritten.ok()) rewritten = RewriteWithout(database_.get(), *file.file, file.use.dead);
      }
      pins_.EndReclaim();
      if (IsNoSpace(rewritten)) {
        VARVE_RETURN_IF_ERROR(database_->Heal());
      } else {
        VARVE_RETURN_IF_ERROR(rewritten);
      }
    }
    if (rewritten.ok()) {
      report->freed_bytes += file.use.dead_bytes;
      report->rewritten_bytes += file.Rest();
    } else {
      keep(file);
    }
  }

  CommitBatch batch;
  std::set<uint64_t> still_dead;
  for (const uint64_t birth : births_with_dead_) {
    const Result<const BirthRecord*> record = counts.Birth(birth);
    if (!record.ok()) {
      const StatusCode code = record.status().code();
      // Deleted with its last list; or damaged, and then it stays as it is.
      if (code == StatusCode::kNotFound || code == StatusCode::kCorruption) continue;
      return record.status();
    }
    for (uint32_t ordinal = 0; ordinal < (*record)->chunks; ++ordinal) {
      const Result<uint32_t> count = counts.ChunkCount({birth, ordinal});
      if (!count.ok() && count.status().code() != StatusCode::kCorruption) return count.status();
      if (!count.ok() || *count == 0 || (*count & kDeadBit) == 0) continue;
      if (kept_dead.contains({birth, ordinal})) {
        still_dead.insert(birth);
      } else {
        VARVE_RETURN_IF_ERROR(counts.MarkGone({birth, ordinal}));
      }
    }
  }
  VARVE_RETURN_IF_ERROR(counts.WriteTo(&batch));
  VARVE_RETURN_IF_ERROR(batch.Commit(database_.get(), incoming(), {}));
  births_with_dead_ = std::move(still_dead);
  return Status::Ok();
}

// Releases the steps as a drop would, looks what a reclaim would do then, and throws the result
// away.
Result<DropForecast> StoreImpl::ForecastDrop(std::span<const CheckpointId> ids) const {
  DropForecast forecast;
  std::unique_lock<std::mutex> maintenance, commits;  // of a writer: what comes meanwhile waits
  if (database_->for_writing()) {
    maintenance = std::unique_lock(maintenance_mutex_);
    commits = std::unique_lock(commit_mutex_);
  }
  VARVE_RETURN_IF_ERROR(WithFrozenView([&]() -> Status {
    forecast = {};
    VARVE_ASSIGN_OR_RETURN(const std::vector<StepKey> steps, FindSteps(ids));
    CommitBatch ignored;
    ReferenceCounts counts(database_.get());
    for (const StepKey& step : steps) VARVE_RETURN_IF_ERROR(ReleaseStep(step, &counts, &ignored));
    VARVE_ASSIGN_OR_RETURN(std::set<uint64_t> with_dead, FindBirthsWithDead());
    with_dead.insert(counts.births_with_dead().begin(), counts.births_with_dead().end());
    VARVE_ASSIGN_OR_RETURN(const std::vector<ChunkFile> files, ListChunkFiles(*database_));
    VARVE_ASSIGN_OR_RETURN(const ReclaimPlan plan,
                           PlanReclaim(files, with_dead, *database_, &counts, /*all=*/false));
    for (const DeadFile& file : plan.deleted) forecast.freed_now += file.use.dead_bytes;
    for (const DeadFile& file : plan.rewritten) forecast.freed_now += file.use.dead_bytes;
    for (const DeadFile& file : plan.kept) forecast.freed_later += file.use.dead_bytes;
    return Status::Ok();
  }));
  return forecast;
}

Result<std::set<uint64_t>> StoreImpl::FindBirthsWithDead() const {
  std::set<uint64_t> births;
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kBirths, "", [&](std::string_view key, std::string_view value) -> Status {
        const auto parsed = keys::ParseBirth(key);
        if (!parsed.has_value() || parsed->block.has_value()) return Status::Ok();
        const Result<BirthRecord> record = DecodeBirthRecord(value);
        if (!record.ok() || record->live_chunks < record->chunks) births.insert(parsed->birth);
        return Status::Ok();
      }));
  return births;
}

Result<uint64_t> StoreImpl::PendingBytes() const {
  uint64_t pending = 0;
  VARVE_RETURN_IF_ERROR(database_->Scan(
      Family::kCounts, "", [&](std::string_view key, std::string_view value) -> Status {
        const auto parsed = keys::ParseCounts(key);
        if (!parsed.has_value()) return Status::Corruption("a malformed key in family counts");
        if (parsed->kind != Counted::kChunk) return Status::Ok();
        const Result<std::vector<uint32_t>> counts = DecodeCounts(value);
        if (!counts.ok()) return Status::Ok();  // of a damaged block nothing is given back
        for (const uint32_t count : *counts) {
          if ((count & kDeadBit) != 0) pending += count & kMaxCount;
        }
        return Status::Ok();
      }));
  return pending;
}

void StoreImpl::MergeLoop(std::stop_token stop) {
  std::unique_lock lock(background_mutex_);
  while (true) {
    if (!background_wake_.wait(lock, stop,
                               [&] { return commits_since_merge_ >= kCommitsBetweenMerges; })) {
      return;
    }
    commits_since_merge_ = 0;
    lock.unlock();
    // Merging is housekeeping: what fails now (a full disk, say) is tried again later.
    Guarded("merging", [&] { return MergeSmallFiles(); }).IgnoreError();
    lock.lock();
  }
}

// Changes no key, so commits may go on meanwhile. A run of side-by-side small files becomes one;
// the sizes grow by a factor of sixteen from tier to tier, so each byte is rewritten a few times at
// most.
Status StoreImpl::MergeSmallFiles() {
  const std::lock_guard maintenance(maintenance_mutex_);
  return MergeLocked();
}

Status StoreImpl::MergeLocked() {
  for (const uint64_t limit : kMergeLimits) {
    VARVE_ASSIGN_OR_RETURN(const std::vector<ChunkFile> files, ListChunkFiles(*database_));
    std::vector<std::string> run;
    // A save in progress will add a file of its birth: nothing that lies around it may be merged.
    const uint64_t lowest_open = pins_.LowestOpenBirth();
    for (size_t i = 0; i <= files.size(); ++i) {
      if (i < files.size() && files[i].bytes < limit && files[i].last.birth < lowest_open) {
        run.push_back(files[i].name);
        continue;
      }
      if (run.size() >= kMergeWidth) VARVE_RETURN_IF_ERROR(Rewrite(database_.get(), run));
      run.clear();
    }
  }
  return MergeMetadata(database_.get());
}

}  // namespace varve
