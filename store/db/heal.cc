// SPDX-License-Identifier: Apache-2.0
//
// After an error of RocksDB the database is closed and opened again. What is there can be read even
// if that fails.
#include "base/guarded.h"
#include "base/util.h"
#include "store/db/commit_file_system.h"
#include "store/db/database.h"

namespace varve::internal {

// Opens the newest state for reading, with all files that exist.
Status Database::OpenDespite() const {
  Close();
  rocksdb::DBOptions options = db_options_;
  options.paranoid_checks = false;
  const rocksdb::Status status = OpenRocksDb::Open(
      [&](auto* handles, auto** db) {
        return rocksdb::DB::OpenForReadOnly(options, DbPath(path_).string(), families_, handles,
                                            db);
      },
      &open_);
  return status.ok() ? Status::Ok() : OpenError(status, path_);
}

// The disk may be better now. The next write heals the database.
Result<Database::Use> Database::OpenAgainToRead() const {
  {
    const std::lock_guard lock(use_mutex_);
    if (open_ == nullptr) {
      closed_ = OpenDespite();
      VARVE_RETURN_IF_ERROR(closed_);
      const CountsChange change(&ingest_events_);  // nobody has read in between
    }
  }
  Use use(this);
  if (use.rocksdb() != nullptr) return use;
  return Status::Unavailable("the database in " + path_.string() + " is being opened again");
}

Result<Database::Use> Database::BeginWrite() {
  VARVE_RETURN_IF_ERROR(Heal());
  return BeginRead();
}

bool Database::has_failed() const {
  return failed_ || (file_system_ != nullptr && file_system_->in_doubt());
}

Status Database::Heal() {
  if (!has_failed()) return Status::Ok();
  // After an error RocksDB starts no compaction, so a thread that waits for one would never stop.
  std::weak_ptr<const OpenRocksDb> stopped;  // another may lie at the same address later
  {
    const Use use(this);
    stopped = use.open();
    if (use.rocksdb() != nullptr) use.rocksdb()->DisableManualCompaction();
  }
  std::unique_lock lock(use_mutex_);
  unused_.wait(lock, [&] { return uses_ == 0; });
  if (!has_failed()) {  // another thread did it
    const auto still_open = stopped.lock();
    if (still_open != nullptr) still_open->db()->EnableManualCompaction();
    return Status::Ok();
  }
  // What an ingest has done that RocksDB called failed may be there from now on.
  const CountsChange change(&ingest_events_);
  Close();
  ForgetAround();
  file_system_->EndDoubt();
  failed_ = false;
  const auto open = [this] { return Guarded("opening", [this] { return OpenWriter(); }); };
  closed_ = open();
  if (IsNoSpace(closed_)) {
    RemoveUnnamedTables();
    closed_ = open();
  }
  if (closed_.ok()) return Status::Ok();
  failed_ = true;
  const Status reason = closed_;
  const Status reading = OpenDespite();
  if (!reading.ok()) closed_ = reading;
  return reason.WithContext("opening the store again after an error");
}

// Runs while the database is closed. On a full disk, the files of a failed rewrite are the room for
// the next manifest.
void Database::RemoveUnnamedTables() const {
  const auto files = ReadManifest(path_, families_);
  if (!files.ok()) return;
  const std::set<std::string> names = NamesOf(*files);
  std::error_code ignored;
  for (auto it = std::filesystem::directory_iterator(DbPath(path_), ignored);
       !ignored && it != std::filesystem::directory_iterator(); it.increment(ignored)) {
    const std::filesystem::path& file = it->path();
    if (file.extension() != ".sst" || names.contains(file.filename())) continue;
    std::error_code failed;
    std::filesystem::remove(file, failed);
  }
}

}  // namespace varve::internal
