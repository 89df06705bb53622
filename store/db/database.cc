// SPDX-License-Identifier: Apache-2.0
#include "store/db/database.h"

#include <rocksdb/sst_file_writer.h>
#include <sys/stat.h>

#include <string>

#include "base/util.h"
#include "store/db/seal_guard.h"

namespace varve::internal {

Database::~Database() { Close(); }

Database::Use::Use(const Database* database) : database_(database) {
  const std::lock_guard lock(database_->use_mutex_);
  ++database_->uses_;
  open_ = database_->open_;
}

Database::Use::~Use() {
  if (database_ == nullptr) return;
  open_.reset();  // before it is not counted any more: Heal must be the one who closes it
  const std::lock_guard lock(database_->use_mutex_);
  if (--database_->uses_ == 0) database_->unused_.notify_all();
}

Result<Database::Use> Database::BeginRead() const {
  Use use(this);
  if (use.rocksdb() != nullptr) return use;
  return OpenAgainToRead();
}

std::vector<rocksdb::LiveFileMetaData> Database::FilesOf(Family family) const {
  std::vector<rocksdb::LiveFileMetaData> files;
  const Use use(this);
  use.rocksdb()->GetLiveFilesMetaData(&files);
  const std::string& name = use.handle(family)->GetName();
  std::erase_if(files, [&](const auto& file) { return file.column_family_name != name; });
  for (auto& file : files) file.name = std::filesystem::path(file.name).filename();
  return files;
}

bool Database::HasIngested(const std::filesystem::path& path) const {
  struct stat source {
  }, table{};
  const Result<Use> use = BeginRead();
  if (!use.ok() || ::stat(path.c_str(), &source) != 0) return false;
  std::vector<rocksdb::LiveFileMetaData> files;
  use->rocksdb()->GetLiveFilesMetaData(&files);
  for (const std::string& name : NamesOf(files)) {
    if (::stat((DbPath(path_) / name).c_str(), &table) == 0 && table.st_ino == source.st_ino &&
        table.st_dev == source.st_dev) {
      return true;
    }
  }
  return false;
}

rocksdb::Options Database::FileOptions(Family family) const {
  rocksdb::Options options(db_options_, family_options_[static_cast<size_t>(family)]);
  options.bytes_per_sync = 8 << 20;  // starts write-back early, so that the final sync is short
  options.strict_bytes_per_sync = false;
  return options;
}

rocksdb::Status Database::FinishTable(rocksdb::SstFileWriter* writer,
                                      const std::filesystem::path& path) const {
  rocksdb::ExternalSstFileInfo info;
  rocksdb::Status status = writer->Finish(&info);  // syncs
  if (guard_ == nullptr || !status.ok()) return status;
  const std::lock_guard lock(tags_mutex_);
  // A save that was given up has removed its tables.
  std::erase_if(tags_, [](const auto& each) {
    std::error_code ignored;
    return !std::filesystem::exists(each.first, ignored) && !ignored;
  });
  tags_.insert_or_assign(path.string(), info.file_checksum);
  return status;
}

Status Database::CompareTags(std::span<const std::string> names) const {
  if (guard_ == nullptr) return Status::Ok();
  VARVE_ASSIGN_OR_RETURN(const Use use, BeginRead());
  return guard_->Compare(use.rocksdb(), names);
}

// Without them RocksDB would read each table again, and take what it reads for what was written.
Status Database::AddTags(std::vector<rocksdb::IngestExternalFileArg>* args) {
  if (guard_ == nullptr) return Status::Ok();
  const std::lock_guard lock(tags_mutex_);
  for (rocksdb::IngestExternalFileArg& arg : *args) {
    arg.options.verify_file_checksum = false;
    for (const std::string& path : arg.external_files) {
      const auto tag = tags_.find(path);
      if (tag == tags_.end()) return Status::FailedPrecondition(path + " has no tag");
      arg.files_checksums.push_back(tag->second);
      arg.files_checksum_func_names.emplace_back(db_options_.file_checksum_gen_factory->Name());
    }
  }
  for (const auto& arg : *args) {
    for (const std::string& path : arg.external_files) tags_.erase(path);
  }
  return Status::Ok();
}

rocksdb::Status Database::Ingest(std::vector<rocksdb::IngestExternalFileArg> args) {
  if (const Status tagged = AddTags(&args); !tagged.ok()) {
    return rocksdb::Status::InvalidArgument(tagged.message());
  }
  const std::lock_guard lock(ingest_mutex_);
  const CountsChange change(&ingest_events_);
  return ingest_for_test_ ? ingest_for_test_(args) : open_->db()->IngestExternalFiles(args);
}

void Database::AwaitCommits() const {
  ++num_waiting_;
  { const std::lock_guard lock(catch_up_mutex_); }
  { const std::lock_guard lock(ingest_mutex_); }
  --num_waiting_;
}

}  // namespace varve::internal
