// SPDX-License-Identifier: Apache-2.0
#include "store/db/open_rocksdb.h"

#include <rocksdb/env.h>
#include <unistd.h>

#include <system_error>

#include "store/db/rocksdb_options.h"

namespace varve::internal {

// RocksDB may throw although it has opened the database, if its timer gets no thread. Its other
// threads may be at work in the database then, with an Env that the caller is about to free. If
// there is no memory, RocksDB may throw with its mutex held. Then it cannot be closed, and keeps
// the lock of the database until the process ends.
rocksdb::Status OpenRocksDb::Open(const OpenCall& call,
                                  std::shared_ptr<const OpenRocksDb>* opened) {
  const auto made = std::make_shared<OpenRocksDb>();
  rocksdb::DB* raw = nullptr;
  try {
    const rocksdb::Status status = call(&made->handles_, &raw);
    made->db_.reset(raw);  // to be closed if it failed
    if (status.ok()) *opened = made;
    return status;
  } catch (const std::system_error&) {
    made->db_.reset(raw);
    throw;
  }
}

// A pool that did not get its thread at an earlier open, or at one of another thread, looks for it
// when the first merge is due. RocksDB would throw with its mutex held. Here nothing is open yet.
rocksdb::Status OpenRocksDb::OpenToWrite(const OpenCall& call,
                                         std::shared_ptr<const OpenRocksDb>* opened) {
  for (const auto pool : {rocksdb::Env::LOW, rocksdb::Env::HIGH}) {
    rocksdb::Env::Default()->IncBackgroundThreadsIfNeeded(1, pool);  // as RocksDB will
    rocksdb::Env::Default()->Schedule([](void*) {}, nullptr, pool);
  }
  return Open(call, opened);
}

// If RocksDB's timer had a thread once and later got none, closing the last database joins the
// thread that has ended, and throws before anything is closed. The timer counts as stopped then, so
// the second call closes the database.
OpenRocksDb::~OpenRocksDb() {
  if (db_ == nullptr) return;
  for (auto* handle : handles_) db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  // All that matters was synced by its commit.
  try {
    db_->Close().PermitUncheckedError();
  } catch (const std::system_error&) {
    db_->Close().PermitUncheckedError();
  }
}

// GetLiveFilesMetaData is not asked: after a catch-up that failed half way it shows a newer state
// than reads do.
FamilyTables OpenRocksDb::Tables() const {
  FamilyTables tables;
  for (rocksdb::ColumnFamilyHandle* const handle : handles_) {
    rocksdb::ColumnFamilyMetaData family;
    db_->GetColumnFamilyMetaData(handle, &family);
    for (const auto& level : family.levels) {
      for (const auto& file : level.files) tables[handle->GetName()].insert(file.file_number);
    }
  }
  return tables;
}

// A family has two states at least once it has shown one: that state, and the empty one that it
// began with.
bool OpenRocksDb::HasShownAll() const {
  for (rocksdb::ColumnFamilyHandle* const handle : handles_) {
    uint64_t states = 0;
    if (!db_->GetIntProperty(handle, rocksdb::DB::Properties::kNumLiveVersions, &states) ||
        states < 2) {
      return false;
    }
  }
  return true;
}

// RocksDB 7.8 keeps an error of a catch-up for good, and an assert fails when the manifest could
// not be read. TryAgain is no such error: CURRENT named a manifest that was gone. An OK does not
// say that it has advanced: a table that was removed between two looks at it ends a catch-up with
// OK. Only the tables that it shows then say what it has reached.
Status OpenRocksDb::Advance() const {
  constexpr int kAttempts = 6;
  if (!spent_.ok()) return spent_;
  if (!HasShownAll()) {
    spent_ =
        Status::IOError("catching up with the writer: a table went while the store was opened");
    return spent_;
  }
  spent_ = Status::IOError("a catch-up has thrown");  // unless it ends
  rocksdb::Status status = db_->TryCatchUpWithPrimary();
  for (int attempt = 0; attempt < kAttempts && status.IsTryAgain(); ++attempt) {
    ::usleep(1000 << attempt);
    status = db_->TryCatchUpWithPrimary();
  }
  Status caught_up = FromRocksDb(status, "catching up with the writer");
  spent_ = status.IsTryAgain() ? Status::Ok() : caught_up;
  return caught_up;
}

}  // namespace varve::internal
