// SPDX-License-Identifier: Apache-2.0
//
// Writes changes of one family to table files as they come, in the order of their keys. Memory
// holds the index and the filter of one table, however many changes there are. A CommitBatch makes
// the tables visible together with its own changes. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "store/db/database.h"
#include "store/format/keys.h"
#include "varve/status.h"

namespace rocksdb {
class SstFileWriter;
}

namespace varve::internal {

// Returns a path in `incoming` that this process has not used. A table is never opened over an
// existing file, because a leftover may be a hard link to a committed one.
std::filesystem::path NewTablePath(const std::filesystem::path& incoming, Family family);

class TableStream {
 public:
  // A table is closed after this many changes, which bounds its index and filter, or after this
  // many bytes.
  static constexpr size_t kMaxChanges = size_t{1} << 20;
  static constexpr uint64_t kMaxBytes = uint64_t{128} << 20;

  // `database` must outlive this. Tests use smaller tables.
  TableStream(const Database* database, std::filesystem::path incoming, Family family,
              size_t max_changes = kMaxChanges);
  TableStream(const TableStream&) = delete;
  TableStream& operator=(const TableStream&) = delete;
  ~TableStream();  // removes the tables unless they were ingested (moved away)

  // Keys must rise. The database must not be opened again (Database::Heal) before Finish.
  Status Put(std::string_view key, std::string_view value);
  Status Delete(std::string_view key);
  // Syncs what was written. No Put may follow.
  Status Finish();

  Family family() const { return family_; }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

 private:
  // Makes room for a change of `bytes` bytes.
  Status Begin(size_t bytes);
  Status OpenTable();

  const Database* const database_;
  const std::filesystem::path incoming_;
  const Family family_;
  const size_t max_changes_;
  std::optional<Database::Use> use_;  // while `writer_` is there
  std::unique_ptr<rocksdb::SstFileWriter> writer_;
  size_t num_changes_ = 0;  // of the open table
  uint64_t num_bytes_ = 0;
  std::vector<std::filesystem::path> paths_;
};

}  // namespace varve::internal
