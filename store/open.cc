// SPDX-License-Identifier: Apache-2.0
//
// Making and opening what lies in a folder: one store, or the root of a group.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/guarded.h"
#include "base/random_number.h"
#include "base/util.h"
#include "store/db/store_impl.h"
#include "store/format/format_file.h"
#include "store/format/group_file.h"
#include "store/group/group_store.h"
#include "store/save/save_session.h"
#include "varve/store.h"

namespace varve {
using namespace internal;

namespace {

namespace fs = std::filesystem;

// It is held while a store is being made. Without it, a second process that makes a store in the
// same folder would remove what the first has built.
class CreateLock {
 public:
  explicit CreateLock(const fs::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ < 0) {
      status_ = ErrnoStatus("open folder", folder, errno);
    } else if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      status_ = Status::Locked("a store is being made in " + folder.string() +
                               " by someone else; it is locked");
    }
  }
  CreateLock(const CreateLock&) = delete;
  CreateLock& operator=(const CreateLock&) = delete;
  ~CreateLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  const Status& status() const { return status_; }

 private:
  const int fd_;
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
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    const bool debris = name == "db" || name == "incoming" || name == "FORMAT.tmp";
    if (!debris) {
      return Status::FailedPrecondition("folder " + path.string() + " is not empty (it holds " +
                                        name + ") and not a store");
    }
  }
  if (error) return Status::IOError("cannot list " + path.string() + ": " + error.message());
  fs::remove_all(path / "db", error);  // without FORMAT nothing in it was ever committed
  if (!error) fs::create_directory(path / "incoming", error);
  if (error) return Status::IOError("cannot prepare " + path.string() + ": " + error.message());
  return Status::Ok();
}

using Opened = Result<std::unique_ptr<Store>>;

Opened CreateIn(const fs::path& path, const CreateOptions& options) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return Status::IOError("cannot create folder " + path.string() + ": " + error.message());
  }
  const CreateLock lock(path);
  VARVE_RETURN_IF_ERROR(lock.status());
  VARVE_RETURN_IF_ERROR(PrepareFolder(path));
  VARVE_RETURN_IF_ERROR(RequireThread(path));
  VARVE_RETURN_IF_ERROR(Database::Create(path));
  VARVE_RETURN_IF_ERROR(SyncFolder(path / "db"));
  FormatFile format;
  format.store_id = {RandomNumber(), RandomNumber()};
  format.digest_seed = options.digest_seed.value_or(RandomNumber());
  if (options.store.entropy != Entropy::kZstd) format.incompatible |= kRansFeature;
  VARVE_RETURN_IF_ERROR(SyncFolder(fs::absolute(path).lexically_normal().parent_path()));
  VARVE_RETURN_IF_ERROR(WriteFormatFile(path, format));  // from here on it is a store
  VARVE_ASSIGN_OR_RETURN(auto store,
                         StoreImpl::OpenPath(path, options.store, /*for_writing=*/true));
  return std::unique_ptr<Store>(std::move(store));
}

Opened OpenToWrite(const fs::path& path, const StoreOptions& options) {
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
  return Guarded("making a store", [&] { return CreateIn(path, options); });
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

Opened Store::OpenForReading(const fs::path& path, const StoreOptions& options) {
  return Guarded("opening a store", [&] { return OpenToRead(path, options); });
}

}  // namespace varve
