// SPDX-License-Identifier: Apache-2.0
//
// Opens a RocksDB, and closes it if RocksDB throws for lack of a thread.
#pragma once

#include <rocksdb/db.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/format/keys.h"
#include "varve/status.h"

namespace varve::internal {

// Numbers of table files by the name of their family: 12 is 000012.sst.
using FamilyTables = std::map<std::string, std::set<uint64_t>>;

// A RocksDB that is open, and its families. These never change, and it is closed when the last
// pointer to it goes. Thread rule: any thread, apart from Advance.
class OpenRocksDb {
 public:
  // One of RocksDB's calls that open a database. It sets the handles of our families in the order
  // of Family, then "default", and those of newer versions.
  using OpenCall =
      std::function<rocksdb::Status(std::vector<rocksdb::ColumnFamilyHandle*>*, rocksdb::DB**)>;
  // Sets `opened` if `call` succeeds. Throws std::system_error if there are too few threads.
  static rocksdb::Status Open(const OpenCall& call, std::shared_ptr<const OpenRocksDb>* opened);
  // The same for a database that is written. RocksDB then needs its own threads.
  static rocksdb::Status OpenToWrite(const OpenCall& call,
                                     std::shared_ptr<const OpenRocksDb>* opened);
  OpenRocksDb() = default;  // for Open only
  OpenRocksDb(const OpenRocksDb&) = delete;
  OpenRocksDb& operator=(const OpenRocksDb&) = delete;
  ~OpenRocksDb();

  rocksdb::DB* db() const { return db_.get(); }
  rocksdb::ColumnFamilyHandle* handle(Family family) const {
    return handles_[static_cast<size_t>(family)];
  }
  const std::vector<rocksdb::ColumnFamilyHandle*>& handles() const { return handles_; }
  // Returns the table files that reads of each family use.
  FamilyTables Tables() const;
  // For readers: catches up with the writer. After an error nobody knows what it shows, and to ask
  // RocksDB once more may abort the process. So it is spent: each later call fails, too. Calls are
  // serialised.
  Status Advance() const;
  // For readers: false when a table was removed while RocksDB opened the database, so that a family
  // has shown no state yet. Then RocksDB 7.8 aborts the process when it catches up and comes to a
  // new manifest (the assert in BaseReferencedVersionBuilder).
  bool HasShownAll() const;

 private:
  std::unique_ptr<rocksdb::DB> db_;
  mutable Status spent_;  // the error of Advance
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
};

}  // namespace varve::internal
