// SPDX-License-Identifier: Apache-2.0
#include "store/db/commit_file_system.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/guarded.h"
#include "store/db/current_copy.h"
#include "store/db/rocksdb_options.h"
#include "store/db/sealed_manifest.h"
#include "store/db/served_file.h"
#include "store/db/spare_files.h"
#include "store/db/table_ends.h"

namespace varve::internal {

namespace {

using rocksdb::DirFsyncOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

bool IsManifest(const std::string& name) {
  return IsManifestName(std::filesystem::path(name).filename().string());
}

// A table that is being ingested. RocksDB gets its ends from memory, where no read fails.
class NewTable : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  NewTable(TableEnds ends, std::unique_ptr<rocksdb::FSRandomAccessFile> target)
      : FSRandomAccessFileOwnerWrapper(std::move(target)), ends_(std::move(ends)) {}

  IOStatus Read(uint64_t offset, size_t size, const IOOptions& options, rocksdb::Slice* result,
                char* scratch, IODebugContext* debug) const override {
    if (ends_.Serve(offset, size, result, scratch)) return IOStatus::OK();
    return FSRandomAccessFileOwnerWrapper::Read(offset, size, options, result, scratch, debug);
  }

 private:
  const TableEnds ends_;
};

class Folder : public rocksdb::FSDirectoryWrapper {
 public:
  Folder(CommitFileSystem* owner, const std::string& path,
         std::unique_ptr<rocksdb::FSDirectory> target)
      : FSDirectoryWrapper(std::move(target)),
        owner_(owner),
        store_(std::filesystem::path(path).parent_path()) {}

  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const DirFsyncOptions& why) override {
    if (why.reason != DirFsyncOptions::kNewFileSynced) {
      IOStatus status =
          owner_->NoteDoubt(FSDirectoryWrapper::FsyncWithDirOptions(options, debug, why));
      if (status.ok() && why.renamed_new_name.ends_with("/CURRENT")) CopyCurrent(store_);
      return status;
    }
    owner_->DeferFolderSync();
    return IOStatus::OK();
  }

 private:
  CommitFileSystem* const owner_;
  const std::filesystem::path store_;
};

class Manifest : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  Manifest(CommitFileSystem* owner, const std::filesystem::path& path,
           std::unique_ptr<rocksdb::FSWritableFile> target)
      : FSWritableFileOwnerWrapper(std::move(target)),
        owner_(owner),
        name_(path.filename()),
        spare_(SpareOfManifest(path)) {}

  // This comes before the bytes are passed to the system, which may write them to the disk at any
  // time afterwards.
  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  IODebugContext* debug) override {
    IOStatus status = owner_->SyncFolderIfPending();
    if (status.ok()) status = FSWritableFileOwnerWrapper::Append(data, options, debug);
    return Appended(std::move(status), data);
  }
  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& verification,
                  IODebugContext* debug) override {
    IOStatus status = owner_->SyncFolderIfPending();
    if (status.ok()) {
      status = FSWritableFileOwnerWrapper::Append(data, options, verification, debug);
    }
    return Appended(std::move(status), data);
  }
  IOStatus Flush(const IOOptions& options, IODebugContext* debug) override {
    return owner_->NoteDoubt(FSWritableFileOwnerWrapper::Flush(options, debug));
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return Synced(FSWritableFileOwnerWrapper::Sync(options, debug));
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Synced(FSWritableFileOwnerWrapper::Fsync(options, debug));
  }

 private:
  IOStatus Appended(IOStatus status, const rocksdb::Slice& data) {
    if (status.ok()) {
      bytes_ += data.size();
      spare_.Append({data.data(), data.size()});
    }
    return owner_->NoteDoubt(std::move(status));
  }
  IOStatus Synced(IOStatus status) {
    if (status.ok()) owner_->manifest_note()->Write(name_, bytes_);
    return owner_->NoteDoubt(std::move(status));
  }

  CommitFileSystem* const owner_;
  const std::string name_;
  SpareFile spare_;
  uint64_t bytes_ = 0;  // RocksDB appends by one thread at a time, and syncs by the same
};

}  // namespace

CommitFileSystem::~CommitFileSystem() {
  if (lock_ != nullptr)
    FileSystemWrapper::UnlockFile(lock_, IOOptions(), nullptr).PermitUncheckedError();
}

IOStatus CommitFileSystem::DeleteFile(const std::string& name, const IOOptions& options,
                                      IODebugContext* debug) {
  if (in_doubt_ && name.starts_with(db_path_ + "/")) {
    return IOStatus::IOError("kept, as the manifest may name it", name);
  }
  IOStatus status = FileSystemWrapper::DeleteFile(name, options, debug);
  if (status.ok() && IsManifest(name)) {
    RemoveSpare(name);
    if (guard_ != nullptr) RemoveSealOfManifest(name);
  }
  return status;
}

IOStatus CommitFileSystem::RenameFile(const std::string& from, const std::string& to,
                                      const IOOptions& options, IODebugContext* debug) {
  return NoteDoubt(FileSystemWrapper::RenameFile(from, to, options, debug));
}

IOStatus CommitFileSystem::LockFile(const std::string& name, const IOOptions& options,
                                    rocksdb::FileLock** lock, IODebugContext* debug) {
  const std::lock_guard guard(lock_mutex_);
  IOStatus status;
  if (lock_ == nullptr) status = FileSystemWrapper::LockFile(name, options, &lock_, debug);
  *lock = lock_;
  return status;
}

IOStatus CommitFileSystem::UnlockFile(rocksdb::FileLock*, const IOOptions&, IODebugContext*) {
  return IOStatus::OK();  // it goes with this object
}

IOStatus CommitFileSystem::ReopenWritableFile(const std::string&, const rocksdb::FileOptions&,
                                              std::unique_ptr<rocksdb::FSWritableFile>*,
                                              IODebugContext*) {
  return IOStatus::NotSupported("ingested files are synced by their writer");
}

IOStatus CommitFileSystem::NewSequentialFile(const std::string& name,
                                             const rocksdb::FileOptions& options,
                                             std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                             IODebugContext* debug) {
  if (guard_ == nullptr) return FileSystemWrapper::NewSequentialFile(name, options, result, debug);
  {
    const std::lock_guard lock(served_mutex_);
    const auto served = served_.find(name);
    if (served != served_.end() || name.ends_with(".log")) {
      *result = std::make_unique<ServedFile>(served == served_.end() ? "" : served->second);
      return IOStatus::OK();
    }
  }
  return FileSystemWrapper::NewSequentialFile(name, options, result, debug);
}

IOStatus CommitFileSystem::NewRandomAccessFile(const std::string& name,
                                               const rocksdb::FileOptions& options,
                                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                               IODebugContext* debug) {
  // RocksDB takes NUMBER.ldb if there is no NUMBER.sst. Varve has written no such file.
  if (guard_ != nullptr && name.ends_with(".ldb")) return IOStatus::PathNotFound(name);
  IOStatus status = FileSystemWrapper::NewRandomAccessFile(name, options, result, debug);
  if (!status.ok() || !name.ends_with(".sst")) return status;
  if (guard_ != nullptr) status = ToIoStatus(guard_->Opened(name, result));
  if (!status.ok() || name.starts_with(db_path_ + "/")) return status;
  return ToIoStatus(Guarded("reading a new table", [&] {
    TableEnds ends;
    const rocksdb::Status read = ends.Read(name);
    // The store itself is not damaged, so this is no kCorruption.
    if (!read.ok()) {
      return Status::IOError(name + ", a new table of this commit, cannot be read back: " +
                             read.ToString() + ". Nothing was committed");
    }
    *result = std::make_unique<NewTable>(std::move(ends), std::move(*result));
    return Status::Ok();
  }));
}

void CommitFileSystem::BeginServing(const SealedState& state) {
  const std::string manifest = state.manifest.filename();
  const std::lock_guard lock(served_mutex_);
  served_ = {{db_path_ + "/" + manifest, state.log}, {db_path_ + "/CURRENT", manifest + "\n"}};
}

void CommitFileSystem::EndServing() {
  const std::lock_guard lock(served_mutex_);
  served_.clear();
}

IOStatus CommitFileSystem::NewDirectory(const std::string& name, const IOOptions& options,
                                        std::unique_ptr<rocksdb::FSDirectory>* result,
                                        IODebugContext* debug) {
  std::unique_ptr<rocksdb::FSDirectory> base;
  IOStatus status = FileSystemWrapper::NewDirectory(name, options, &base, debug);
  if (!status.ok()) return status;
  if (name == db_path_) {
    *result = std::make_unique<Folder>(this, name, std::move(base));
  } else {
    *result = std::move(base);
  }
  return status;
}

IOStatus CommitFileSystem::NewWritableFile(const std::string& name,
                                           const rocksdb::FileOptions& options,
                                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                                           IODebugContext* debug) {
  if (guard_ != nullptr && name.ends_with(".sst")) {
    const Status may_write = guard_->CheckMayWrite();
    if (!may_write.ok()) return ToIoStatus(may_write);
  }
  std::unique_ptr<rocksdb::FSWritableFile> base;
  IOStatus status = FileSystemWrapper::NewWritableFile(name, options, &base, debug);
  if (!status.ok()) return status;
  if (IsManifest(name) && guard_ != nullptr) {
    base = std::make_unique<SealedManifest>(guard_->sealer(), name, std::move(base));
  }
  if (IsManifest(name)) {
    *result = std::make_unique<Manifest>(this, name, std::move(base));
  } else {
    *result = std::move(base);
  }
  return status;
}

IOStatus CommitFileSystem::GetFreeSpace(const std::string&, const IOOptions&, uint64_t* free_bytes,
                                        IODebugContext*) {
  *free_bytes = std::numeric_limits<uint64_t>::max() / 2;
  return IOStatus::OK();
}

IOStatus CommitFileSystem::SyncFolderIfPending() {
  if (!folder_sync_pending_.exchange(false)) return IOStatus::OK();
  std::unique_ptr<rocksdb::FSDirectory> folder;
  IOStatus status = FileSystemWrapper::NewDirectory(db_path_, IOOptions(), &folder, nullptr);
  if (status.ok()) {
    status = folder->FsyncWithDirOptions(IOOptions(), nullptr,
                                         DirFsyncOptions(DirFsyncOptions::kNewFileSynced));
  }
  if (!status.ok()) folder_sync_pending_ = true;  // the names are still not durable
  return status;
}

}  // namespace varve::internal
