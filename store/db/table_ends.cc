// SPDX-License-Identifier: Apache-2.0
#include "store/db/table_ends.h"

#include <rocksdb/env.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "store/db/rocksdb_options.h"

namespace varve::internal {

namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

class KeepingFile : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  KeepingFile(TableEnds* ends, std::unique_ptr<rocksdb::FSRandomAccessFile> target)
      : FSRandomAccessFileOwnerWrapper(std::move(target)), ends_(ends) {}

  IOStatus Read(uint64_t offset, size_t size, const IOOptions& options, rocksdb::Slice* result,
                char* scratch, IODebugContext* debug) const override {
    IOStatus status =
        FSRandomAccessFileOwnerWrapper::Read(offset, size, options, result, scratch, debug);
    if (status.ok()) ends_->Keep(offset, *result);
    return status;
  }

 private:
  TableEnds* const ends_;
};

class KeepingFileSystem : public rocksdb::FileSystemWrapper {
 public:
  KeepingFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base, TableEnds* ends)
      : FileSystemWrapper(base), ends_(ends) {}

  static const char* kClassName() { return "varve.KeepingFileSystem"; }
  const char* Name() const override { return kClassName(); }

  IOStatus NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext* debug) override {
    IOStatus status = FileSystemWrapper::NewRandomAccessFile(name, options, result, debug);
    if (status.ok()) *result = std::make_unique<KeepingFile>(ends_, std::move(*result));
    return status;
  }

 private:
  TableEnds* const ends_;
};

}  // namespace

rocksdb::Status TableEnds::Read(const std::string& path) {
  const rocksdb::Status status = TryToRead(path);
  return status.IsIOError() ? TryToRead(path) : status;  // the disk may have failed only once
}

rocksdb::Status TableEnds::TryToRead(const std::string& path) {
  ranges_.clear();
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  rocksdb::Options options = MakeTableOptions();
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(
      std::make_shared<KeepingFileSystem>(options.env->GetFileSystem(), this));
  options.env = env.get();
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocksdb::SstFileReader reader(options);
  rocksdb::Status status = reader.Open(path);
  if (!status.ok()) return status;
  // A reader does not show deletions. Without a limit it would read on, up to a key that it shows.
  rocksdb::ReadOptions read;
  read.max_skippable_internal_keys = 1;
  const std::unique_ptr<rocksdb::Iterator> key(reader.NewIterator(read));
  key->SeekToFirst();
  status = key->status();
  if (!status.ok() && !status.IsIncomplete()) return status;
  key->SeekToLast();
  status = key->status();
  return status.IsIncomplete() ? rocksdb::Status::OK() : status;
}

bool TableEnds::Serve(uint64_t offset, size_t size, rocksdb::Slice* result, char* scratch) const {
  auto range = ranges_.upper_bound(offset);
  if (range == ranges_.begin()) return false;
  --range;
  const uint64_t skipped = offset - range->first;
  if (range->second.size() < skipped || range->second.size() - skipped < size) return false;
  std::copy_n(range->second.data() + skipped, size, scratch);
  *result = {scratch, size};
  return true;
}

void TableEnds::Keep(uint64_t offset, const rocksdb::Slice& bytes) {
  std::string& kept = ranges_[offset];
  if (kept.size() < bytes.size()) kept = bytes.ToString();
}

}  // namespace varve::internal
