// SPDX-License-Identifier: Apache-2.0
//
// Making and opening what lies in a folder: one store, or the root of a group.
#include "base/guarded.h"
#include "store/db/store_impl.h"
#include "store/format/format_file.h"
#include "store/format/group_file.h"
#include "store/format/outside_stores.h"
#include "store/group/group_store.h"
#include "store/read/sharded_reader.h"
#include "store/save/save_session.h"
#include "varve/store.h"

namespace varve {
using namespace internal;

namespace {

namespace fs = std::filesystem;

using Opened = Result<std::unique_ptr<Store>>;

// A group's GROUP beside a store's FORMAT would hide the store.
Status CheckIsOne(const fs::path& path) {
  std::error_code ignored;
  if (!IsGroupRoot(path) || !fs::exists(path / kFormatFileName, ignored)) return Status::Ok();
  return Status::Corruption(path.string() +
                            " has FORMAT, of a store, and GROUP, of the root of a group. Move the "
                            "one away that does not belong there");
}

Opened OpenToWrite(const fs::path& path, const StoreOptions& options) {
  VARVE_RETURN_IF_ERROR(CheckIsOne(path));
  if (IsGroupRoot(path)) {
    VARVE_ASSIGN_OR_RETURN(auto group, GroupStore::OpenPath(path, options, /*for_writing=*/true));
    return std::unique_ptr<Store>(std::move(group));
  }
  if (const fs::path root = RootOfMember(path); !root.empty()) {
    return Status::FailedPrecondition(path.string() + " is a member of the group in " +
                                      root.string() + ": open that root to write");
  }
  VARVE_RETURN_IF_ERROR(CheckNotLost(path));
  VARVE_ASSIGN_OR_RETURN(auto store, StoreImpl::OpenPath(path, options, /*for_writing=*/true));
  return std::unique_ptr<Store>(std::move(store));
}

Opened OpenToRead(const fs::path& path, const StoreOptions& options) {
  VARVE_RETURN_IF_ERROR(CheckIsOne(path));
  if (IsGroupRoot(path)) {
    VARVE_ASSIGN_OR_RETURN(auto group, GroupStore::OpenPath(path, options, /*for_writing=*/false));
    return std::unique_ptr<Store>(std::move(group));
  }
  VARVE_RETURN_IF_ERROR(CheckNotLost(path));
  VARVE_ASSIGN_OR_RETURN(auto store, StoreImpl::OpenPath(path, options, /*for_writing=*/false));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace

Opened Store::Create(const fs::path& path, const CreateOptions& options) {
  return Guarded("making a store", [&]() -> Opened {
    VARVE_RETURN_IF_ERROR(CheckIsOutsideStores(path));
    VARVE_ASSIGN_OR_RETURN(auto store, StoreImpl::CreatePath(path, options));
    return std::unique_ptr<Store>(std::move(store));
  });
}

Opened Store::Open(const fs::path& path, const StoreOptions& options) {
  return Guarded("opening a store", [&] { return OpenToWrite(path, options); });
}

Opened Store::OpenOrCreate(const fs::path& path, const CreateOptions& options) {
  auto store = Open(path, options.store);
  if (store.ok() || store.status().code() != StatusCode::kNotFound) return store;
  return Create(path, options);
}

Result<std::unique_ptr<CheckpointWriter>> Store::Begin(uint64_t step, const SaveOptions& options) {
  return Guarded("beginning a save", [&]() -> Result<std::unique_ptr<CheckpointWriter>> {
    VARVE_ASSIGN_OR_RETURN(auto session, BeginSession(step, options));
    return std::unique_ptr<CheckpointWriter>(std::move(session));
  });
}

Result<std::unique_ptr<CheckpointReader>> Store::OpenCheckpoint(std::string_view run,
                                                                uint64_t step) const {
  VARVE_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader,
                         ShardedReader::Open(*this, run, step));
  return reader;
}

Opened Store::OpenForReading(const fs::path& path, const StoreOptions& options) {
  return Guarded("opening a store", [&] { return OpenToRead(path, options); });
}

}  // namespace varve
