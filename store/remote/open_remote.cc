// SPDX-License-Identifier: Apache-2.0
//
// Reads a snapshot where it lies: RocksDB, opened over a file system whose files are ranges of
// blobs.
#include "store/remote/open_remote.h"

#include <utility>

#include "base/guarded.h"
#include "objects/url.h"
#include "store/remote/remote_file_system.h"
#include "store/remote/remote_log.h"

namespace varve::internal {

namespace {

// Where the database seems to lie. Nothing is there.
constexpr char kFolder[] = "/varve-snapshot";

// A blob of the snapshot is missing or too short.
Status WhyMissing(Objects* objects, const RemoteSnapshot& snapshot, Status error) {
  const RemoteLog log(objects);
  VARVE_RETURN_IF_ERROR(log.ReadNewest().status());  // or nobody knows whether it was removed
  return log.WhyUnreadable(snapshot, std::move(error));
}

Status HealthOf(const BlobReader& blobs) {
  const Status failure = blobs.failure();
  return failure.code() == StatusCode::kCorruption ? Status::Ok() : failure;
}

}  // namespace

Result<OpenedSnapshot> OpenSnapshot(std::string_view url, const RemoteStoreOptions& options) {
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
  auto blobs = std::make_shared<const BlobReader>(
      objects, std::move(cache), [objects, snapshot](Status error) {
        return WhyMissing(objects.get(), snapshot, std::move(error));
      });
  auto file_system =
      std::make_shared<RemoteFileSystem>(std::string(kFolder) + "/db", std::move(body), blobs);
  auto database = Database::OpenFrozen(kFolder, std::move(file_system));
  if (!database.ok()) {
    const Status why = HealthOf(*blobs);
    return (why.ok() ? database.status() : why).WithContext(name);
  }
  OpenedSnapshot opened;
  VARVE_ASSIGN_OR_RETURN(opened.store,
                         StoreImpl::OpenFrozen(name, format, *std::move(database), options.store));
  opened.health = [blobs] { return HealthOf(*blobs); };
  return opened;
}

}  // namespace varve::internal

namespace varve {
using namespace internal;

Result<std::unique_ptr<Store>> OpenRemote(std::string_view url, const RemoteStoreOptions& options) {
  return Guarded("opening a store", [&]() -> Result<std::unique_ptr<Store>> {
    VARVE_ASSIGN_OR_RETURN(OpenedSnapshot opened, OpenSnapshot(url, options));
    return std::unique_ptr<Store>(std::move(opened.store));
  });
}

}  // namespace varve
