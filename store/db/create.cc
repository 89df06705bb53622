// SPDX-License-Identifier: Apache-2.0
//
// Making a store.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/file_descriptor.h"
#include "base/folders.h"
#include "base/random_number.h"
#include "base/util.h"
#include "store/db/manifest_note.h"
#include "store/db/save_ids.h"
#include "store/db/sealed_manifest.h"
#include "store/db/spare_files.h"
#include "store/db/store_impl.h"
#include "store/format/format_file.h"
#include "store/format/group_file.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// It is held while a store is being made. Without it, a second process that makes a store in the
// same folder would remove what the first has built.
class CreateLock {
 public:
  explicit CreateLock(const fs::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (!fd_.is_open()) {
      status_ = ErrnoStatus("open folder", folder, errno);
    } else if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      status_ = Status::Locked("a store is being made in " + folder.string() +
                               " by someone else; it is locked");
    }
  }
  const Status& status() const { return status_; }

 private:
  const FileDescriptor fd_;
  Status status_;
};

// A folder in which Create may work: new, empty, or left by a Create that did not finish.
Status PrepareFolder(const fs::path& path) {
  std::error_code error;
  // It must come before all other names. A folder lists them in any order, and a store holds more
  // than debris.
  if (fs::exists(path / kFormatFileName, error)) {
    return Status::AlreadyExists("there is a store in " + path.string());
  }
  if (IsGroupRoot(path)) {
    return Status::AlreadyExists("there is the root of a group in " + path.string());
  }
  const Status format = ReadFormatFile(path, /*for_writing=*/false).status();
  if (format.code() == StatusCode::kCorruption) return format;  // it has lost the file
  for (const fs::directory_entry& entry : EntriesOf(path, &error)) {
    const std::string name = entry.path().filename().string();
    const bool debris = name == "db" || name == "incoming" || name == "spare" || name == "seal" ||
                        name == "FORMAT.tmp";
    if (!debris) {
      return Status::FailedPrecondition("folder " + path.string() + " is not empty (it holds " +
                                        name + ") and not a store");
    }
  }
  if (error) return Status::IOError("cannot list " + path.string() + ": " + error.message());
  VARVE_RETURN_IF_ERROR(CheckIsNoLink(path / "incoming"));
  fs::remove_all(path / "db", error);  // without FORMAT nothing in it was ever committed
  if (!error) fs::remove_all(SpareFolder(path), error);
  if (!error) fs::remove_all(SealFolder(path), error);
  if (!error) fs::create_directory(path / "incoming", error);
  if (error) return Status::IOError("cannot prepare " + path.string() + ": " + error.message());
  return Status::Ok();
}

FormatFile NewFormat(const CreateOptions& options, uint64_t features) {
  FormatFile format;
  format.store_id = {RandomNumber(), RandomNumber()};
  format.digest_seed = options.digest_seed.value_or(RandomNumber());
  if (options.store.entropy != Entropy::kZstd)
    format.incompatible = kIncompatibleFeatures & features;
  if (!options.store.key.empty()) format.read_compatible |= kSealedFeature;
  return format;
}

}  // namespace

Result<std::unique_ptr<StoreImpl>> StoreImpl::CreatePath(const fs::path& path,
                                                         const CreateOptions& options,
                                                         uint64_t features) {
  VARVE_RETURN_IF_ERROR(MakeDurableFolders(path));
  const CreateLock lock(path);
  VARVE_RETURN_IF_ERROR(lock.status());
  VARVE_RETURN_IF_ERROR(PrepareFolder(path));
  VARVE_RETURN_IF_ERROR(RequireThread(path));
  const FormatFile format = NewFormat(options, features);
  VARVE_ASSIGN_OR_RETURN(const auto sealer,
                         MakeSealer(path, options.store, format, /*for_writing=*/true));
  VARVE_ASSIGN_OR_RETURN(auto database, Database::Create(path, sealer));
  VARVE_RETURN_IF_ERROR(SyncFolder(path / "db"));
  VARVE_RETURN_IF_ERROR(SyncFolder(fs::absolute(path).lexically_normal().parent_path()));
  VARVE_RETURN_IF_ERROR(WriteFormatFile(path, format));  // from here on it is a store
  NoteNewManifest(path);
  VARVE_ASSIGN_OR_RETURN(auto store,
                         Start(path, options.store, format, sealer, std::move(database)));
  store->next_save_id_ = kFirstSaveId;
  store->reserved_save_ids_ = kFirstSaveId + kSaveBlock;
  return store;
}

}  // namespace varve::internal
