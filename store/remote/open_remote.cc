// SPDX-License-Identifier: Apache-2.0
//
// Reads a snapshot where it lies: RocksDB, opened over a file system whose files are ranges of
// blobs.
#include "base/guarded.h"
#include "objects/url.h"
#include "store/db/store_impl.h"
#include "store/remote/remote_file_system.h"
#include "store/remote/remote_log.h"
#include "varve/remote.h"

namespace varve {
using namespace internal;

namespace {

// Where the database seems to lie. Nothing is there.
constexpr char kFolder[] = "/varve-snapshot";

Result<std::unique_ptr<Store>> Open(std::string_view url, const RemoteStoreOptions& options) {
  if (!options.store.key.empty()) {
    return Status::InvalidArgument(std::string(url) +
                                   ": a key was given, and snapshots in an object store have no "
                                   "seal. Pull it, and seal the copy (varve seal)");
  }
  VARVE_ASSIGN_OR_RETURN(auto cache, BlockCache::Open(options.cache_folder, options.cache_bytes));
  VARVE_ASSIGN_OR_RETURN(std::shared_ptr<Objects> objects, OpenObjects(url));
  const RemoteLog log(objects.get());
  VARVE_ASSIGN_OR_RETURN(const RemoteState remote, log.ReadNewest());
  VARVE_ASSIGN_OR_RETURN(const RemoteSnapshot snapshot,
                         log.ChooseSnapshot(remote, options.snapshot));
  VARVE_ASSIGN_OR_RETURN(SnapshotBody body, log.ReadBody(snapshot));
  const FormatFile format = body.format;
  const std::string name = objects->url() + ", snapshot " + std::to_string(snapshot.number);
  auto blobs = std::make_shared<const BlobReader>(std::move(objects), std::move(cache));
  auto file_system = std::make_shared<RemoteFileSystem>(std::string(kFolder) + "/db",
                                                        std::move(body), std::move(blobs));
  auto database = Database::OpenFrozen(kFolder, std::move(file_system));
  if (!database.ok()) return database.status().WithContext(name);
  VARVE_ASSIGN_OR_RETURN(auto store,
                         StoreImpl::OpenFrozen(name, format, *std::move(database), options.store));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace

Result<std::unique_ptr<Store>> OpenRemote(std::string_view url, const RemoteStoreOptions& options) {
  return Guarded("opening a store", [&] { return Open(url, options); });
}

}  // namespace varve
