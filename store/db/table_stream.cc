// SPDX-License-Identifier: Apache-2.0
#include "store/db/table_stream.h"

#include <rocksdb/sst_file_writer.h>

#include <atomic>
#include <string>
#include <system_error>

#include "store/db/rocksdb_options.h"

namespace varve::internal {

std::filesystem::path NewTablePath(const std::filesystem::path& incoming, Family family) {
  static std::atomic<uint64_t> counter{0};
  return incoming / ("commit-" + std::to_string(counter++) + "-" +
                     std::string(kFamilyNames[static_cast<int>(family)]) + ".sst");
}

TableStream::TableStream(const Database* database, std::filesystem::path incoming, Family family,
                         size_t max_changes)
    : database_(database),
      incoming_(std::move(incoming)),
      family_(family),
      max_changes_(max_changes) {}

TableStream::~TableStream() {
  writer_.reset();
  std::error_code ignored;  // missing after a commit. If removing fails, the next open sweeps it
  for (const auto& path : paths_) std::filesystem::remove(path, ignored);
}

Status TableStream::Put(std::string_view key, std::string_view value) {
  VARVE_RETURN_IF_ERROR(Begin(key.size() + value.size()));
  return FromRocksDb(writer_->Put({key.data(), key.size()}, {value.data(), value.size()}),
                     "writing " + paths_.back().string());
}

Status TableStream::Delete(std::string_view key) {
  VARVE_RETURN_IF_ERROR(Begin(key.size()));
  return FromRocksDb(writer_->Delete({key.data(), key.size()}),
                     "writing " + paths_.back().string());
}

Status TableStream::Begin(size_t bytes) {
  const bool is_full = num_changes_ == max_changes_ || num_bytes_ + bytes > kMaxBytes;
  if (writer_ != nullptr && num_changes_ > 0 && is_full) VARVE_RETURN_IF_ERROR(Finish());
  if (writer_ == nullptr) VARVE_RETURN_IF_ERROR(OpenTable());
  ++num_changes_;
  num_bytes_ += bytes;
  return Status::Ok();
}

Status TableStream::OpenTable() {
  VARVE_ASSIGN_OR_RETURN(Database::Use use, database_->BeginRead());
  use_.emplace(std::move(use));
  paths_.push_back(NewTablePath(incoming_, family_));
  const rocksdb::Options options = database_->FileOptions(family_);
  writer_ = std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(options), options,
                                                     use_->handle(family_),
                                                     /*invalidate_page_cache=*/false);
  num_changes_ = 0;
  num_bytes_ = 0;
  return FromRocksDb(writer_->Open(paths_.back().string()), "creating " + paths_.back().string());
}

Status TableStream::Finish() {
  if (writer_ == nullptr) return Status::Ok();
  const rocksdb::Status finished = database_->FinishTable(writer_.get(), paths_.back());
  writer_.reset();
  use_.reset();
  return FromRocksDb(finished, "writing " + paths_.back().string());
}

}  // namespace varve::internal
