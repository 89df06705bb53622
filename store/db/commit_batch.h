// SPDX-License-Identifier: Apache-2.0
//
// The only way to change a store. A batch is a set of puts and deletes over all families. It
// becomes visible in one atomic step, together with files of new chunks. Nothing goes through
// RocksDB's log. Each family's changes are written to a table file and synced, and all files are
// ingested at once. Changes that are too many for memory come as tables that are already written
// (TableStream). Thread rule: one thread at a time. A batch that depends on counts or records it
// has read is committed under the commit mutex that was held when it read them.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/db/database.h"
#include "store/db/table_stream.h"
#include "store/format/keys.h"
#include "varve/status.h"

namespace varve::internal {

class CommitBatch {
 public:
  // A later change of the same key replaces the earlier one.
  void Put(Family family, std::string key, std::string value);
  void Delete(Family family, std::string key);
  // Adds the tables of a finished stream. The batch's own changes replace changes of the same key
  // in the tables, and so do those of streams that are added later.
  void Add(std::unique_ptr<TableStream> stream);

  // Adds entries of a family that are too many to be held in memory. Commit calls `make` once, on
  // any thread, while it writes them. The entries come by rising key, and there is at least one.
  // They replace changes of the same keys. Call it once a family.
  using Emit = std::function<Status(std::string_view key, std::string_view value)>;
  using Make = std::function<Status(const Emit& emit)>;
  void PutSorted(Family family, Make make);

  bool empty() const;
  // True when the batch itself, or a stream in it, has changes of the family.
  bool Changes(Family family) const;
  bool HasStream(Family family) const;
  // Calls `visit` with the key of each change of a family that is held in memory.
  void VisitHeldKeys(Family family, const std::function<void(std::string_view key)>& visit) const;
  uint64_t num_bytes() const { return num_bytes_; }  // in memory, so without those of streams

  // Writes what the batch holds to tables, and syncs them, so that the next Commit need not.
  // Nothing may be put in between. After an error Commit tries it again.
  Status Write(Database* database, const std::filesystem::path& incoming);

  // Makes everything durable, then visible. `chunk_files` are finished and synced table files in
  // `incoming`, for kChunks. After an error nothing is visible. The batch's own files are then
  // removed, and the chunk files stay with their owner.
  Status Commit(Database* database, const std::filesystem::path& incoming,
                std::span<const std::filesystem::path> chunk_files) const;

 private:
  // Table files in `incoming`, synced. They are removed, unless they were ingested and so moved
  // away.
  struct Tables {
    struct Table {
      Family family;
      std::filesystem::path path;
      Status status;
    };
    Tables() = default;
    Tables(const Tables&) = delete;
    Tables& operator=(const Tables&) = delete;
    ~Tables();
    std::vector<Table> all;
  };
  struct FamilyChanges {
    std::map<std::string, std::optional<std::string>> held;
    Make make;
    bool empty() const { return held.empty() && make == nullptr; }
  };
  Status WriteTables(Database* database, const std::filesystem::path& incoming,
                     Tables* tables) const;
  static Status WriteTable(const Database& database, Family family,
                           const std::filesystem::path& path, const FamilyChanges& changes);

  FamilyChanges changes_[kNumFamilies];
  std::vector<std::unique_ptr<TableStream>> streams_;
  mutable std::unique_ptr<Tables> written_;  // by Write. A commit takes them
  uint64_t num_bytes_ = 0;                   // of keys and values that are held, approximately
};

}  // namespace varve::internal
