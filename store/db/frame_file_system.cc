// SPDX-License-Identifier: Apache-2.0
#include "store/db/frame_file_system.h"

#include <cstdint>
#include <span>
#include <utility>

#include "store/db/frame_block.h"

namespace varve::internal {

using rocksdb::IOStatus;

namespace {

thread_local bool reads_frame = false;

class TableFile : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  TableFile(std::unique_ptr<rocksdb::FSRandomAccessFile> file, std::string name, uint64_t size)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), name_(std::move(name)), size_(size) {}

  IOStatus Read(uint64_t offset, size_t size, const rocksdb::IOOptions& options,
                rocksdb::Slice* result, char* scratch,
                rocksdb::IODebugContext* debug) const override {
    IOStatus status =
        FSRandomAccessFileOwnerWrapper::Read(offset, size, options, result, scratch, debug);
    // Opening a table reads up to the end of its file. A block ends before that.
    if (!reads_frame || !status.ok() || offset + size >= size_) return status;
    const auto block = std::as_bytes(std::span(result->data(), result->size()));
    if (HasSoundEntries(block)) return status;
    return IOStatus::Corruption("damaged block of " + std::to_string(size) + " bytes at " +
                                std::to_string(offset) + " of " + name_);
  }

 private:
  const std::string name_;
  const uint64_t size_;
};

}  // namespace

IOStatus FrameFileSystem::NewRandomAccessFile(const std::string& name,
                                              const rocksdb::FileOptions& options,
                                              std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                              rocksdb::IODebugContext* debug) {
  if (!name.ends_with(".sst")) return target()->NewRandomAccessFile(name, options, result, debug);
  uint64_t size = 0;
  IOStatus status = target()->GetFileSize(name, rocksdb::IOOptions(), &size, debug);
  if (!status.ok()) return status;
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  status = target()->NewRandomAccessFile(name, options, &file, debug);
  if (status.ok()) *result = std::make_unique<TableFile>(std::move(file), name, size);
  return status;
}

FrameFileSystem::ReadOfFrame::ReadOfFrame() { reads_frame = true; }
FrameFileSystem::ReadOfFrame::~ReadOfFrame() { reads_frame = false; }

}  // namespace varve::internal
