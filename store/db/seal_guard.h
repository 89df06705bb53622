// SPDX-License-Identifier: Apache-2.0
//
// Keeps the writer of a sealed store from giving new tags to what somebody else has changed.
//
// When RocksDB opens a table of records that the verified manifest names, the table is compared
// with its tag, through the same descriptor. Tables of chunks are large. They are compared before
// they are written anew, also through RocksDB's descriptor. All tables are compared before they are
// merged. After a difference no table is written any more: every save of this writer fails, with
// the name of the table. Thread-safe.
#pragma once

#include <rocksdb/file_system.h>
#include <rocksdb/listener.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "store/db/manifest_tables.h"
#include "store/db/sealer.h"

namespace varve::internal {

class SealGuard {
 public:
  explicit SealGuard(std::shared_ptr<const Sealer> sealer) : sealer_(std::move(sealer)) {}

  const std::shared_ptr<const Sealer>& sealer() const { return sealer_; }

  // Call it before RocksDB opens the database, with the verified state of the manifest. It forgets
  // the errors of earlier comparisons that may pass.
  void Begin(const ManifestTables& state);
  // Call it for each table that RocksDB opens. It may replace `file`. kCorruption: the tag of
  // a table of records is wrong.
  Status Opened(const std::string& path, std::unique_ptr<rocksdb::FSRandomAccessFile>* file);
  // Compares tables of the database with their tags. Only the name in each path counts.
  Status Compare(rocksdb::DB* db, std::span<const std::string> paths) const;

  // Call it after an error of a comparison. No table may be written from then on.
  void Refuse(const Status& status);
  Status CheckMayWrite() const;

 private:
  using File = std::shared_ptr<rocksdb::FSRandomAccessFile>;
  Status CompareOne(const std::string& path, std::string_view tag) const;

  const std::shared_ptr<const Sealer> sealer_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> tags_of_records_;  // by name, and all below is guarded
  std::map<std::string, std::weak_ptr<rocksdb::FSRandomAccessFile>> open_;
  Status refusal_;
};

// Compares the inputs of each compaction that RocksDB starts by itself, and of CompactRange.
// RocksDB does not announce CompactFiles.
class SealListener : public rocksdb::EventListener {
 public:
  // `failed` is set after an error that may pass. It must outlive the database.
  SealListener(std::shared_ptr<SealGuard> guard, std::atomic<bool>* failed)
      : guard_(std::move(guard)), failed_(failed) {}

  void OnCompactionBegin(rocksdb::DB* db, const rocksdb::CompactionJobInfo& job) override;

 private:
  const std::shared_ptr<SealGuard> guard_;
  std::atomic<bool>* const failed_;
};

}  // namespace varve::internal
