// SPDX-License-Identifier: Apache-2.0
//
// The options that varve sets in RocksDB, and why. It also converts statuses between both. See also
// "Pitfalls of RocksDB 7.8.3" in docs/durability.md.
#pragma once

#include <rocksdb/compaction_filter.h>
#include <rocksdb/io_status.h>
#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "store/format/keys.h"
#include "varve/status.h"

namespace varve::internal {

// A chunk file is closed at this size, and files are merged until they reach half of it.
inline constexpr uint64_t kChunkFileBytes = uint64_t{256} << 20;

// Removes dead chunks while a file is rewritten. Without a predicate it removes nothing.
// Thread-safe.
class DeadChunkFilterFactory : public rocksdb::CompactionFilterFactory {
 public:
  using IsDead = std::function<bool(ChunkAddress)>;
  const char* Name() const override { return "varve.DeadChunkFilter"; }
  std::unique_ptr<rocksdb::CompactionFilter> CreateCompactionFilter(
      const rocksdb::CompactionFilter::Context& context) override;

  // Set it around one rewrite, on the thread that runs the rewrite. Set nullptr afterwards.
  void SetPredicate(std::shared_ptr<const IsDead> is_dead);

  // For tests: each rewrite that removes chunks runs this before it reads. It may delay the
  // rewrite.
  void set_before_rewrite_for_test(std::function<void()> run) {
    const std::lock_guard lock(mutex_);
    before_rewrite_for_test_ = std::move(run);
  }

 private:
  std::mutex mutex_;
  std::function<void()> before_rewrite_for_test_;  // guarded by mutex_
  std::shared_ptr<const IsDead> is_dead_;          // guarded by mutex_
};

// Returns the options of a database with about `num_files` files.
rocksdb::DBOptions MakeDbOptions(size_t num_files = 0);
// Returns the options with which one table file is read by itself.
rocksdb::Options MakeTableOptions();
// The options of each family, in the order of Family.
std::vector<rocksdb::ColumnFamilyOptions> MakeFamilyOptions(
    std::shared_ptr<DeadChunkFilterFactory> filter);

// Converts RocksDB's status. `what` says what was being done.
Status FromRocksDb(const rocksdb::Status& status, const std::string& what);
// Converts a status for RocksDB, whose errors of files tell damage from all else.
rocksdb::IOStatus ToIoStatus(const Status& status);

}  // namespace varve::internal
