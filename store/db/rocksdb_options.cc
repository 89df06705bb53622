// SPDX-License-Identifier: Apache-2.0
#include "store/db/rocksdb_options.h"

#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/memory_allocator.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <cstdarg>
#include <memory>

#include "base/reused_memory.h"
#include "base/startable_threads.h"
#include "store/db/manifest_file_system.h"

namespace varve::internal {

namespace {

// Each open, and each look of a reader for news, starts the threads of this option for every
// family, even if it has few files. For a few files that takes longer than opening them.
// RocksDB aborts the process if only some of these threads start.
constexpr size_t kFilesPerOpeningThread = 128;
constexpr size_t kMaxOpeningThreads = 16;

constexpr size_t kLeastManifestBytes = size_t{1} << 20;
constexpr size_t kManifestBytesPerFile = 1024;

// RocksDB's own log would be a file on the store's disk, and RocksDB would abort the process when
// that disk is full. Everything that matters in it also comes back as a Status, so nothing is kept.
class SilentLogger : public rocksdb::Logger {
 public:
  SilentLogger() : Logger(rocksdb::FATAL_LEVEL) {}
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// RocksDB is not compiled for ThreadSanitizer, which does not see how a block of the cache goes
// from one thread to another. It only knows who has allocated the block, unless RocksDB has.
#if defined(__SANITIZE_THREAD__)
constexpr bool kAllocatesFrames = false;
#else
constexpr bool kAllocatesFrames = true;
#endif

// Memory for frames while they are read.
class FrameAllocator : public rocksdb::MemoryAllocator {
 public:
  const char* Name() const override { return "varve.FrameAllocator"; }
  void* Allocate(size_t size) override { return TakeMemory(size); }
  void Deallocate(void* memory) override { GiveMemory(memory); }
};

class DeadChunkFilter : public rocksdb::CompactionFilter {
 public:
  explicit DeadChunkFilter(std::shared_ptr<const DeadChunkFilterFactory::IsDead> is_dead)
      : is_dead_(std::move(is_dead)) {}
  const char* Name() const override { return "varve.DeadChunkFilter"; }
  bool Filter(int, const rocksdb::Slice& key, const rocksdb::Slice&, std::string*,
              bool*) const override {
    const auto address = keys::ParseChunk({key.data(), key.size()});
    return address.has_value() && (*is_dead_)(*address);
  }

 private:
  const std::shared_ptr<const DeadChunkFilterFactory::IsDead> is_dead_;
};

rocksdb::ColumnFamilyOptions MetadataFamilyOptions(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = 8 << 10;
  table.format_version = 5;
  table.checksum = rocksdb::kXXH3;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kLZ4Compression;
  options.write_buffer_size = 1 << 20;
  // Each commit ingests one small file a family. One level and size-tiered merging keep their
  // number logarithmic at a logarithmic cost. With more levels, files that do not overlap would
  // sink to the last level, one a commit, and stay there for ever.
  options.compaction_style = rocksdb::kCompactionStyleUniversal;
  options.num_levels = 1;
  options.level0_file_num_compaction_trigger = 8;
  options.level0_slowdown_writes_trigger = 64;
  options.level0_stop_writes_trigger = 96;
  options.compaction_options_universal.size_ratio = 20;
  options.compaction_options_universal.max_size_amplification_percent = 100;
  return options;
}

rocksdb::ColumnFamilyOptions ChunkFamilyOptions(std::shared_ptr<DeadChunkFilterFactory> filter) {
  rocksdb::BlockBasedTableOptions table;
  // This cache keeps no large frames. A large frame is in it only while somebody reads it, and only
  // from there can RocksDB return it without a copy. Small frames share a block, about a hundred in
  // each, and the next read finds them.
  rocksdb::LRUCacheOptions cache;
  cache.capacity = 256 << 10;
  cache.num_shard_bits = 0;
  if (kAllocatesFrames) cache.memory_allocator = std::make_shared<FrameAllocator>();
  table.block_cache = rocksdb::NewLRUCache(cache);
  table.block_size = 16 << 10;
  // A frame that does not fit starts a block of its own. So reading the short last chunk of a shard
  // does not read a large neighbour with it.
  table.block_size_deviation = 99;
  table.format_version = 5;
  table.checksum = rocksdb::kXXH3;  // this build's crc32c is software: 1.5 GB/s a core
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;  // frames are encoded already
  options.write_buffer_size = 1 << 20;
  // Save ids only grow, so ingested files never overlap and land on the last level. Only varve
  // decides what is merged or rewritten (store/ops/reclaim.cc).
  options.num_levels = 2;
  options.disable_auto_compactions = true;
  options.target_file_size_base = kChunkFileBytes;
  options.max_compaction_bytes = uint64_t{1} << 40;
  options.compaction_filter_factory = std::move(filter);
  return options;
}

}  // namespace

std::unique_ptr<rocksdb::CompactionFilter> DeadChunkFilterFactory::CreateCompactionFilter(
    const rocksdb::CompactionFilter::Context&) {
  std::shared_ptr<const IsDead> is_dead;
  std::function<void()> before;
  {
    const std::lock_guard lock(mutex_);
    is_dead = is_dead_;
    before = before_rewrite_for_test_;
  }
  if (is_dead == nullptr) return nullptr;
  if (before) before();
  return std::make_unique<DeadChunkFilter>(std::move(is_dead));
}

void DeadChunkFilterFactory::SetPredicate(std::shared_ptr<const IsDead> is_dead) {
  const std::lock_guard lock(mutex_);
  is_dead_ = std::move(is_dead);
}

rocksdb::DBOptions MakeDbOptions(size_t num_files) {
  rocksdb::DBOptions options;
  options.env = ManifestEnv();
  options.info_log = std::make_shared<SilentLogger>();
  options.allow_fallocate = false;
  options.fail_if_options_file_error = false;  // ManifestFileSystem makes none
  options.max_open_files = -1;
  options.max_file_opening_threads = StartableThreads(static_cast<int>(
      std::clamp<size_t>(num_files / kFilesPerOpeningThread, 1, kMaxOpeningThreads)));
  options.max_background_jobs = 2;
  options.max_total_wal_size = 1 << 20;
  // The manifest is read in full at each open, and RocksDB takes long for it: 15 to 20 times as
  // long for 1.4 MB as for what a new store has. When it is longer than this, it is written anew,
  // with some 250 bytes for each file. A writer that comes to more than 4,000 files before it opens
  // the store again writes it anew at each commit. The store then holds hundreds of gigabytes.
  options.max_manifest_file_size = std::max(kLeastManifestBytes, kManifestBytesPerFile * num_files);
  // A rewrite waits for what it has written before it writes more. So a commit that syncs meanwhile
  // has little before it in the disk's queue.
  options.bytes_per_sync = 1 << 20;
  options.strict_bytes_per_sync = true;
  options.writable_file_max_buffer_size = 1 << 20;
  options.advise_random_on_open = false;  // or the system would not read ahead of a restore
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.skip_stats_update_on_db_open = true;
  return options;
}

rocksdb::Options MakeTableOptions() {
  rocksdb::Options options;
  options.env = ManifestEnv();
  options.info_log = std::make_shared<SilentLogger>();
  return options;
}

std::vector<rocksdb::ColumnFamilyOptions> MakeFamilyOptions(
    std::shared_ptr<DeadChunkFilterFactory> filter) {
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(8 << 20);
  std::vector<rocksdb::ColumnFamilyOptions> options(kNumFamilies, MetadataFamilyOptions(cache));
  options[static_cast<int>(Family::kChunks)] = ChunkFamilyOptions(std::move(filter));
  return options;
}

Status FromRocksDb(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return Status::Ok();
  std::string message = what + ": " + status.ToString();
  if (status.IsNotFound()) return Status::NotFound(std::move(message));
  if (status.IsCorruption()) return Status::Corruption(std::move(message));
  if (status.IsBusy()) return Status::Locked(std::move(message));
  return Status::IOError(std::move(message));
}

rocksdb::IOStatus ToIoStatus(const Status& status) {
  if (status.ok()) return rocksdb::IOStatus::OK();
  return status.code() == StatusCode::kCorruption ? rocksdb::IOStatus::Corruption(status.message())
                                                  : rocksdb::IOStatus::IOError(status.message());
}

}  // namespace varve::internal
