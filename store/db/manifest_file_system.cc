// SPDX-License-Identifier: Apache-2.0
#include "store/db/manifest_file_system.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file_descriptor.h"
#include "base/util.h"
#include "store/db/manifest_log.h"
#include "store/db/manifest_note.h"

namespace varve::internal {

using rocksdb::IOStatus;

namespace {

// A manifest without a torn end. A writer may append to it meanwhile.
class ManifestFile : public rocksdb::FSSequentialFileOwnerWrapper {
 public:
  ManifestFile(std::unique_ptr<rocksdb::FSSequentialFile> file, std::filesystem::path path)
      : FSSequentialFileOwnerWrapper(std::move(file)), path_(std::move(path)) {}

  IOStatus Read(size_t size, const rocksdb::IOOptions& options, rocksdb::Slice* result,
                char* scratch, rocksdb::IODebugContext* debug) override {
    const uint64_t end = FindEnd();
    size = static_cast<size_t>(std::min<uint64_t>(size, end - std::min(at_, end)));
    IOStatus status = FSSequentialFileOwnerWrapper::Read(size, options, result, scratch, debug);
    if (status.ok()) at_ += result->size();
    return status;
  }
  IOStatus Skip(uint64_t size) override {
    at_ += size;
    return FSSequentialFileOwnerWrapper::Skip(size);
  }

 private:
  uint64_t FindEnd() {
    std::error_code error;
    const uint64_t size = std::filesystem::file_size(path_, error);
    if (error) return UINT64_MAX;  // it lies elsewhere
    if (size == size_) return end_;
    size_ = end_ = size;
    const auto read = ReadManifestNote(path_.parent_path().parent_path());
    if (!read.ok() || !read->has_value()) return end_;
    const NotedManifest& note = **read;
    if (note.manifest != path_.filename() || size <= note.bytes) return end_;
    const Result<std::string> log = ReadSmallFile(path_, size);
    if (!log.ok()) return end_;
    const uint64_t whole = EndOfLogRecords(*log, LogChecksums::kCompare);
    if (whole >= note.bytes) end_ = whole;
    return end_;
  }

  const std::filesystem::path path_;
  uint64_t at_ = 0;
  uint64_t size_ = UINT64_MAX, end_ = 0;  // of the file when it was looked at, and of its records
};

// Of a file of options, and of one that is still being written.
bool IsOptionsName(std::string_view name) { return name.starts_with("OPTIONS-"); }

IOStatus CheckMayOpen(const std::string& name) {
  const Status status = CheckIsFile(std::filesystem::path(name));
  return status.ok() ? IOStatus::OK() : IOStatus::Corruption(status.message());
}

}  // namespace

IOStatus ManifestFileSystem::NewSequentialFile(const std::string& name,
                                               const rocksdb::FileOptions& options,
                                               std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                               rocksdb::IODebugContext* debug) {
  std::unique_ptr<rocksdb::FSSequentialFile> file;
  IOStatus status = CheckMayOpen(name);
  if (status.ok()) status = target()->NewSequentialFile(name, options, &file, debug);
  if (!status.ok()) return status;
  std::filesystem::path path = name;
  if (IsManifestName(path.filename().string())) {
    *result = std::make_unique<ManifestFile>(std::move(file), std::move(path));
  } else {
    *result = std::move(file);
  }
  return status;
}

IOStatus ManifestFileSystem::NewRandomAccessFile(
    const std::string& name, const rocksdb::FileOptions& options,
    std::unique_ptr<rocksdb::FSRandomAccessFile>* result, rocksdb::IODebugContext* debug) {
  const IOStatus status = CheckMayOpen(name);
  return status.ok() ? target()->NewRandomAccessFile(name, options, result, debug) : status;
}

IOStatus ManifestFileSystem::NewWritableFile(const std::string& name,
                                             const rocksdb::FileOptions& options,
                                             std::unique_ptr<rocksdb::FSWritableFile>* result,
                                             rocksdb::IODebugContext* debug) {
  if (IsOptionsName(std::filesystem::path(name).filename().string())) {
    return IOStatus::NotSupported("varve keeps the options of RocksDB in no file");
  }
  // A link in the place of a new file is not followed.
  if (!CheckIsNoLink(name).ok()) ::unlink(name.c_str());
  const IOStatus status = CheckMayOpen(name);
  return status.ok() ? target()->NewWritableFile(name, options, result, debug) : status;
}

IOStatus ManifestFileSystem::GetFileSize(const std::string& name, const rocksdb::IOOptions& options,
                                         uint64_t* size, rocksdb::IODebugContext* debug) {
  const IOStatus status = target()->GetFileSize(name, options, size, debug);
  if (status.ok() || !IsOptionsName(std::filesystem::path(name).filename().string())) return status;
  *size = 0;
  return IOStatus::OK();
}

rocksdb::Env* ManifestEnv() {
  // It outlives every database, also one that a static object holds.
  static rocksdb::Env* const env =
      rocksdb::NewCompositeEnv(std::make_shared<ManifestFileSystem>()).release();
  return env;
}

}  // namespace varve::internal
