// SPDX-License-Identifier: Apache-2.0
#include "store/db/seal_guard.h"

#include <rocksdb/db.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/guarded.h"

namespace varve::internal {

Status CompareTags(rocksdb::DB* db, std::span<const std::string> paths, const Sealer& sealer) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  std::map<std::filesystem::path, std::string> tags;
  for (const auto& file : files) {
    tags.emplace(std::filesystem::path(file.name).filename(), file.file_checksum);
  }
  for (const std::string& path : paths) {
    const std::filesystem::path name = std::filesystem::path(path).filename();
    VARVE_RETURN_IF_ERROR(sealer.CompareTable(db->GetName() / name, tags[name]));
  }
  return Status::Ok();
}

void SealGuard::OnCompactionBegin(rocksdb::DB* db, const rocksdb::CompactionJobInfo& job) {
  const Status status = Guarded("verifying the inputs of a compaction",
                                [&] { return CompareTags(db, job.input_files, *sealer_); });
  if (!status.ok()) file_system_->RefuseTables(status.message());
}

}  // namespace varve::internal
