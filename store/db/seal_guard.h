// SPDX-License-Identifier: Apache-2.0
//
// Keeps a writer from giving new tags to what somebody else has changed: tables are compared with
// their tags before they are merged or written anew. Thread-safe.
#pragma once

#include <rocksdb/listener.h>

#include <memory>
#include <span>
#include <string>

#include "store/db/commit_file_system.h"
#include "store/db/sealer.h"

namespace varve::internal {

// Compares tables with their tags. Only the last part of each path counts. kCorruption names a
// table that does not have its tag.
Status CompareTags(rocksdb::DB* db, std::span<const std::string> paths, const Sealer& sealer);

// Does so for each compaction that RocksDB starts by itself, and for CompactRange. RocksDB does not
// announce CompactFiles. After a difference, the file system of the store writes no table any more:
// every save of this writer fails, with the name of the table.
class SealGuard : public rocksdb::EventListener {
 public:
  // `file_system` must outlive the database.
  SealGuard(std::shared_ptr<const Sealer> sealer, CommitFileSystem* file_system)
      : sealer_(std::move(sealer)), file_system_(file_system) {}

  void OnCompactionBegin(rocksdb::DB* db, const rocksdb::CompactionJobInfo& job) override;

 private:
  const std::shared_ptr<const Sealer> sealer_;
  CommitFileSystem* const file_system_;
};

}  // namespace varve::internal
