// SPDX-License-Identifier: Apache-2.0
#include "store/db/seal_guard.h"

#include <rocksdb/db.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "store/format/keys.h"

namespace varve::internal {

namespace {

namespace fs = std::filesystem;

// A file that RocksDB has open. The guard may read it, too.
class SharedFile : public rocksdb::FSRandomAccessFileWrapper {
 public:
  explicit SharedFile(std::shared_ptr<rocksdb::FSRandomAccessFile> file)
      : FSRandomAccessFileWrapper(file.get()), file_(std::move(file)) {}

 private:
  const std::shared_ptr<rocksdb::FSRandomAccessFile> file_;
};

Sealer::ReadAt ReaderOf(const std::string& path, rocksdb::FSRandomAccessFile* file) {
  return [&path, file](uint64_t offset, std::span<char> out) -> Result<size_t> {
    rocksdb::Slice read;
    const rocksdb::IOStatus status = file->Read(offset, out.size(), {}, &read, out.data(), nullptr);
    if (!status.ok()) return Status::IOError("cannot read " + path + ": " + status.ToString());
    if (read.data() != out.data()) std::copy_n(read.data(), read.size(), out.data());
    return read.size();
  };
}

}  // namespace

void SealGuard::Begin(const ManifestTables& state) {
  const std::lock_guard lock(mutex_);
  tags_of_records_.clear();
  for (const auto& [number, table] : state.tables) {
    if (state.families.at(table.family) == kFamilyNames[static_cast<int>(Family::kChunks)])
      continue;
    tags_of_records_.emplace(TableFileName(number), table.tag);
  }
  if (refusal_.code() != StatusCode::kCorruption) refusal_ = Status::Ok();
}

Status SealGuard::Opened(const std::string& path,
                         std::unique_ptr<rocksdb::FSRandomAccessFile>* file) {
  const std::string name = fs::path(path).filename();
  File shared = std::move(*file);
  std::string tag;
  {
    const std::lock_guard lock(mutex_);
    const auto found = tags_of_records_.find(name);
    if (found != tags_of_records_.end()) tag = found->second;
    std::erase_if(open_, [](const auto& each) { return each.second.expired(); });
    open_.insert_or_assign(name, shared);
  }
  if (!tag.empty()) {
    VARVE_RETURN_IF_ERROR(sealer_->CompareTable(path, tag, ReaderOf(path, shared.get())));
  }
  *file = std::make_unique<SharedFile>(std::move(shared));
  return Status::Ok();
}

Status SealGuard::CompareOne(const std::string& path, std::string_view tag) const {
  File open;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(fs::path(path).filename());
    if (found != open_.end()) open = found->second.lock();
  }
  if (open == nullptr) return sealer_->CompareTable(path, tag);
  return sealer_->CompareTable(path, tag, ReaderOf(path, open.get()));
}

Status SealGuard::Compare(rocksdb::DB* db, std::span<const std::string> paths) const {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  std::map<std::string, std::string> tags;
  for (const auto& file : files) tags.emplace(fs::path(file.name).filename(), file.file_checksum);
  for (const std::string& path : paths) {
    const std::string name = fs::path(path).filename();
    VARVE_RETURN_IF_ERROR(CompareOne(db->GetName() + "/" + name, tags[name]));
  }
  return Status::Ok();
}

void SealGuard::Refuse(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (refusal_.ok()) refusal_ = status;
}

Status SealGuard::CheckMayWrite() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void SealListener::OnCompactionBegin(rocksdb::DB* db, const rocksdb::CompactionJobInfo& job) {
  const Status status = Guarded("verifying the inputs of a compaction",
                                [&] { return guard_->Compare(db, job.input_files); });
  if (status.ok()) return;
  guard_->Refuse(status);
  if (status.code() != StatusCode::kCorruption)
    *failed_ = true;  // Heal lets tables be written again
}

}  // namespace varve::internal
