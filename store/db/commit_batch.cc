// SPDX-License-Identifier: Apache-2.0
#include "store/db/commit_batch.h"

#include <rocksdb/sst_file_writer.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/guarded.h"

namespace varve::internal {

namespace {

using Held = std::map<std::string, std::optional<std::string>>;

rocksdb::Status WriteChange(const Held::value_type& change, rocksdb::SstFileWriter* writer) {
  const auto& [key, value] = change;
  return value.has_value() ? writer->Put(key, *value) : writer->Delete(key);
}

// All files of a commit by family. Within a family, later files win.
using FilesByFamily = std::map<Family, std::vector<std::string>>;

// The commit is one atomic group in the manifest. RocksDB syncs files, folder and manifest.
Status Ingest(Database* database, const FilesByFamily& files) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database->BeginWrite());
  std::vector<rocksdb::IngestExternalFileArg> args;
  for (const auto& [family, paths] : files) {
    // Chunks come first, so that what the other families name exists when they become visible.
    const auto place = family == Family::kChunks ? args.begin() : args.end();
    rocksdb::IngestExternalFileArg& arg = *args.emplace(place);
    arg.column_family = use.handle(family);
    arg.external_files = paths;
    arg.options.move_files = true;
    arg.options.write_global_seqno = false;
  }
  return FromRocksDb(database->Ingest(std::move(args)), "committing");
}

}  // namespace

Status CommitBatch::WriteTable(const Database& database, Family family,
                               const std::filesystem::path& path, const FamilyChanges& changes) {
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database.BeginRead());
  const rocksdb::Options options = database.FileOptions(family);
  rocksdb::SstFileWriter writer(rocksdb::EnvOptions(options), options, use.handle(family),
                                /*invalidate_page_cache=*/false);
  const auto named = [&](const rocksdb::Status& status) {
    return status.ok() ? Status::Ok() : FromRocksDb(status, "writing " + path.string());
  };
  VARVE_RETURN_IF_ERROR(named(writer.Open(path.string())));
  auto next = changes.held.begin();
  const auto write_below = [&](std::string_view key) {
    rocksdb::Status status;
    for (; status.ok() && next != changes.held.end() && next->first < key; ++next) {
      status = WriteChange(*next, &writer);
    }
    if (next != changes.held.end() && next->first == key) ++next;
    return status;
  };
  const Emit emit = [&](std::string_view key, std::string_view value) {
    rocksdb::Status status = write_below(key);
    if (status.ok()) status = writer.Put({key.data(), key.size()}, {value.data(), value.size()});
    return named(status);
  };
  if (changes.make != nullptr) VARVE_RETURN_IF_ERROR(changes.make(emit));
  for (; next != changes.held.end(); ++next) {
    VARVE_RETURN_IF_ERROR(named(WriteChange(*next, &writer)));
  }
  return named(database.FinishTable(&writer, path));
}

void CommitBatch::PutSorted(Family family, Make make) {
  changes_[static_cast<int>(family)].make = std::move(make);
}

void CommitBatch::Put(Family family, std::string key, std::string value) {
  num_bytes_ += key.size() + value.size();
  changes_[static_cast<int>(family)].held.insert_or_assign(std::move(key), std::move(value));
}

void CommitBatch::Delete(Family family, std::string key) {
  num_bytes_ += key.size();
  changes_[static_cast<int>(family)].held.insert_or_assign(std::move(key), std::nullopt);
}

void CommitBatch::Add(std::unique_ptr<TableStream> stream) {
  if (!stream->paths().empty()) streams_.push_back(std::move(stream));
}

bool CommitBatch::empty() const {
  return streams_.empty() && std::all_of(std::begin(changes_), std::end(changes_),
                                         [](const auto& changes) { return changes.empty(); });
}

bool CommitBatch::Changes(Family family) const {
  return !changes_[static_cast<int>(family)].empty() || HasStream(family);
}

bool CommitBatch::HasStream(Family family) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [family](const auto& stream) { return stream->family() == family; });
}

void CommitBatch::VisitHeldKeys(Family family,
                                const std::function<void(std::string_view key)>& visit) const {
  for (const auto& [key, value] : changes_[static_cast<int>(family)].held) visit(key);
}

CommitBatch::Tables::~Tables() {
  std::error_code ignored;  // what stays is swept at the next open
  for (const Table& table : all) std::filesystem::remove(table.path, ignored);
}

Status CommitBatch::Write(Database* database, const std::filesystem::path& incoming) {
  auto tables = std::make_unique<Tables>();
  VARVE_RETURN_IF_ERROR(WriteTables(database, incoming, tables.get()));
  written_ = std::move(tables);
  return Status::Ok();
}

Status CommitBatch::WriteTables(Database* database, const std::filesystem::path& incoming,
                                Tables* written) const {
  VARVE_RETURN_IF_ERROR(database->Heal());
  std::vector<Tables::Table>& tables = written->all;
  for (int i = 0; i < kNumFamilies; ++i) {
    if (changes_[i].empty()) continue;
    tables.push_back({static_cast<Family>(i), NewTablePath(incoming, static_cast<Family>(i)), {}});
  }
  // Each file costs a sync. Waiting for them side by side costs about as much as one. It is waiting
  // and not work, so it uses a thread for each file instead of the pool.
  {
    std::vector<std::jthread> writers;
    for (Tables::Table& table : tables) {
      const auto write = [&] {
        table.status = Guarded("writing a commit", [&] {
          return WriteTable(*database, table.family, table.path,
                            changes_[static_cast<int>(table.family)]);
        });
      };
      const Status started = Guarded("starting a thread", [&] {
        writers.emplace_back(write);
        return Status::Ok();
      });
      if (!started.ok()) write();  // one after the other then
    }
  }
  for (const Tables::Table& table : tables) VARVE_RETURN_IF_ERROR(table.status);
  return Status::Ok();
}

Status CommitBatch::Commit(Database* database, const std::filesystem::path& incoming,
                           std::span<const std::filesystem::path> chunk_files) const {
  if (empty() && chunk_files.empty()) return Status::Ok();
  std::unique_ptr<Tables> tables = std::move(written_);
  if (tables == nullptr) {
    tables = std::make_unique<Tables>();
    VARVE_RETURN_IF_ERROR(WriteTables(database, incoming, tables.get()));
  }
  FilesByFamily files;
  for (const auto& path : chunk_files) files[Family::kChunks].push_back(path.string());
  for (const auto& stream : streams_) {
    for (const auto& path : stream->paths()) files[stream->family()].push_back(path.string());
  }
  for (const Tables::Table& table : tables->all) {
    files[table.family].push_back(table.path.string());
  }
  Status status = Ingest(database, files);
  if (status.ok()) {
    tables->all.clear();  // moved away
  } else {
    // Reading it again shows whether the error struck before or after the record was written. If
    // the record is there, it is durable, too, because opening writes the manifest anew.
    const Status healed = database->Heal();
    if (!healed.ok()) {
      status = status.WithContext("outcome unknown; check the store before retrying");
    } else if (database->HasIngested(files.begin()->second.front())) {
      status = Status::Ok();
    }
  }
  return status;
}

}  // namespace varve::internal
