// SPDX-License-Identifier: Apache-2.0
#include "store/save/chunk_files.h"

#include <rocksdb/sst_file_writer.h>

#include <system_error>

namespace varve::internal {

namespace {

// The most files that may be syncing while the next one fills.
constexpr size_t kMaxClosing = 2;

}  // namespace

ChunkFiles::ChunkFiles(const Database* database, std::filesystem::path incoming, uint64_t save_id)
    : database_(database), incoming_(std::move(incoming)), save_id_(save_id) {}

ChunkFiles::~ChunkFiles() {
  for (auto& closing : closing_) closing.wait();
  current_.reset();
  std::error_code ignored;  // missing after a commit. If removing fails, the next open sweeps it
  for (const auto& path : paths_) std::filesystem::remove(path, ignored);
}

Status ChunkFiles::Add(ChunkAddress address, std::span<const std::byte> frame) {
  if (current_ != nullptr && current_bytes_ + frame.size() > kChunkFileBytes) {
    VARVE_RETURN_IF_ERROR(CloseCurrent());
  }
  if (current_ == nullptr) VARVE_RETURN_IF_ERROR(OpenNext());
  current_bytes_ += frame.size();
  const rocksdb::Slice value(reinterpret_cast<const char*>(frame.data()), frame.size());
  return FromRocksDb(current_->Put(keys::Chunk(address), value),
                     "writing " + paths_.back().string());
}

Status ChunkFiles::Finish() {
  Status status;
  if (current_ != nullptr) status = CloseCurrent();
  while (!closing_.empty()) {
    const Status closed = WaitForOldest();
    if (status.ok()) status = closed;
  }
  return status;
}

Status ChunkFiles::OpenNext() {
  paths_.push_back(incoming_ / ("birth-" + std::to_string(save_id_) + "-" +
                                std::to_string(paths_.size()) + ".sst"));
  VARVE_ASSIGN_OR_RETURN(const Database::Use use, database_->BeginRead());
  const rocksdb::Options options = database_->FileOptions(Family::kChunks);
  current_ = std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(options), options,
                                                      use.handle(Family::kChunks),
                                                      /*invalidate_page_cache=*/false);
  current_bytes_ = 0;
  return FromRocksDb(current_->Open(paths_.back().string()), "creating " + paths_.back().string());
}

Status ChunkFiles::CloseCurrent() {
  if (closing_.size() == kMaxClosing) VARVE_RETURN_IF_ERROR(WaitForOldest());
  closing_.push_back(std::async(
      std::launch::async, [writer = std::shared_ptr<rocksdb::SstFileWriter>(std::move(current_)),
                           database = database_, path = paths_.back()] {
        return FromRocksDb(database->FinishTable(writer.get(), path), "syncing " + path.string());
      }));
  return Status::Ok();
}

Status ChunkFiles::WaitForOldest() {
  std::future<Status> oldest = std::move(closing_.front());  // get() may throw, and leaves it empty
  closing_.erase(closing_.begin());
  return oldest.get();
}

}  // namespace varve::internal
