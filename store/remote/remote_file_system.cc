// SPDX-License-Identifier: Apache-2.0
#include "store/remote/remote_file_system.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/run_parallel.h"
#include "base/util.h"
#include "store/db/rocksdb_options.h"

namespace varve::internal {

namespace {

using rocksdb::FileOptions;
using rocksdb::FSReadRequest;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr uint64_t kSmallPackBytes = uint64_t{4} << 20;
// For reads that are asked for together: one request fetches 8 MiB of chunks with all around them.
constexpr uint64_t kFetchBytes = (uint64_t{8} << 20) + (uint64_t{256} << 10);
constexpr uint64_t kGapBytes = uint64_t{64} << 10;  // that are fetched for nothing
constexpr int kFetches = 4;                         // at the same time

IOStatus ReadOnly(const std::string& name) {
  return IOStatus::NotSupported("a store that is read by its URL cannot be written", name);
}

// A file that lies in memory.
class MemoryFile : public rocksdb::FSSequentialFile {
 public:
  explicit MemoryFile(const std::string* bytes) : bytes_(bytes) {}
  IOStatus Read(size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) override {
    n = std::min(n, bytes_->size() - at_);
    std::memcpy(scratch, bytes_->data() + at_, n);
    *result = Slice(scratch, n);
    at_ += n;
    return IOStatus::OK();
  }
  IOStatus Skip(uint64_t n) override {
    at_ += std::min<uint64_t>(n, bytes_->size() - at_);
    return IOStatus::OK();
  }

 private:
  const std::string* const bytes_;
  size_t at_ = 0;
};

// A table file. It lies in `pack` in memory if that is not null, or in a blob.
class TableFile : public rocksdb::FSRandomAccessFile {
 public:
  TableFile(BlobRange where, std::shared_ptr<const BlobReader> blobs,
            std::shared_ptr<const std::string> pack, uint64_t pack_at)
      : where_(std::move(where)),
        blobs_(std::move(blobs)),
        pack_(std::move(pack)),
        pack_at_(pack_at) {}

  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    n = offset < where_.bytes ? std::min<uint64_t>(n, where_.bytes - offset) : 0;
    *result = Slice(scratch, n);
    if (n == 0) return IOStatus::OK();
    if (pack_ != nullptr) {
      std::memcpy(scratch, pack_->data() + pack_at_ + offset, n);
      return IOStatus::OK();
    }
    return ToIoStatus(blobs_->Read(where_.blob, where_.offset + where_.bytes,
                                   where_.offset + offset,
                                   {reinterpret_cast<std::byte*>(scratch), n}));
  }
  // What lies close together comes in one request.
  IOStatus MultiRead(FSReadRequest* requests, size_t count, const IOOptions& options,
                     IODebugContext* debug) override;
  IOStatus Prefetch(uint64_t, size_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::NotSupported("prefetch");  // RocksDB reads into a buffer of its own then
  }

 private:
  const BlobRange where_;
  const std::shared_ptr<const BlobReader> blobs_;
  const std::shared_ptr<const std::string> pack_;
  const uint64_t pack_at_;
};

IOStatus TableFile::MultiRead(FSReadRequest* requests, size_t count, const IOOptions& options,
                              IODebugContext* debug) {
  std::vector<FSReadRequest*> sorted;
  for (size_t i = 0; i < count; ++i) sorted.push_back(&requests[i]);
  std::ranges::sort(sorted, {}, &FSReadRequest::offset);
  const auto end_of = [](const FSReadRequest* request) { return request->offset + request->len; };
  std::vector<std::span<FSReadRequest* const>> together;
  for (size_t i = 0; i < count; ++i) {
    const bool is_near = i > 0 && sorted[i]->offset >= end_of(sorted[i - 1]) &&
                         sorted[i]->offset - end_of(sorted[i - 1]) <= kGapBytes &&
                         end_of(sorted[i]) - together.back()[0]->offset <= kFetchBytes;
    if (!is_near) together.emplace_back(&sorted[i], 0);
    together.back() = {together.back().data(), together.back().size() + 1};
  }
  return ToIoStatus(RunParallel(together.size(), kFetches, [&](size_t i) {
    const auto& some = together[i];
    FSReadRequest* const front = some.front();
    if (some.size() == 1) {
      front->status =
          Read(front->offset, front->len, options, &front->result, front->scratch, debug);
      return Status::Ok();
    }
    BufferPool::Buffer buffer(blobs_->buffers());
    const std::span<std::byte> bytes = buffer.Resize(end_of(some.back()) - front->offset);
    Slice all;
    const IOStatus status = Read(front->offset, bytes.size(), options, &all,
                                 reinterpret_cast<char*>(bytes.data()), debug);
    for (FSReadRequest* const one : some) {
      one->status = status;
      const uint64_t at = std::min<uint64_t>(one->offset - front->offset, all.size());
      const size_t size = std::min<uint64_t>(one->len, all.size() - at);
      std::memcpy(one->scratch, all.data() + at, size);
      one->result = Slice(one->scratch, size);
    }
    return Status::Ok();
  }));
}

}  // namespace

Status BlobReader::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status BlobReader::Fetch(const std::string& blob, uint64_t offset, std::span<std::byte> out) const {
  const Status status = FetchOnce(blob, offset, out);
  if (status.ok()) return status;
  const std::lock_guard lock(mutex_);
  if (failure_.ok() || failure_.code() == StatusCode::kCorruption) failure_ = status;
  return status;
}

Status BlobReader::FetchOnce(const std::string& blob, uint64_t offset,
                             std::span<std::byte> out) const {
  VARVE_ASSIGN_OR_RETURN(const auto size, objects_->GetBlob(blob, offset, out));
  if (size == out.size()) return Status::Ok();
  return explain_(Status::Corruption(objects_->url() + ": blob " + blob +
                                     (size.has_value() ? " is too short" : " is missing")));
}

Status BlobReader::Read(const std::string& blob, uint64_t blob_end, uint64_t offset,
                        std::span<std::byte> out) const {
  if (cache_ == nullptr) return Fetch(blob, offset, out);
  const uint64_t end = offset + out.size();
  const auto copy = [&](std::string_view bytes, uint64_t at) {
    const uint64_t first = std::max(at, offset), last = std::min<uint64_t>(at + bytes.size(), end);
    if (first < last) {
      std::memcpy(out.data() + (first - offset), bytes.data() + (first - at), last - first);
    }
  };
  const uint64_t end_block = (end + kBlockBytes - 1) / kBlockBytes;
  for (uint64_t block = offset / kBlockBytes; block < end_block;) {
    if (const auto bytes = cache_->Get(blob, block)) {
      const uint64_t needed = std::min(end, (block + 1) * kBlockBytes) - block * kBlockBytes;
      if (bytes->size() >= needed) {
        copy(*bytes, block * kBlockBytes);
        ++block;
        continue;
      }
    }
    // All that is missing up to the next block that is there comes in one request.
    uint64_t last = block + 1;
    while (last < end_block && !cache_->Get(blob, last).has_value()) ++last;
    const uint64_t at = block * kBlockBytes;
    std::string bytes(std::min(last * kBlockBytes, blob_end) - at, '\0');
    VARVE_RETURN_IF_ERROR(
        Fetch(blob, at, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
    copy(bytes, at);
    for (; block < last; ++block) {
      const std::string_view part(bytes);
      cache_->Put(blob, block, part.substr(block * kBlockBytes - at, kBlockBytes));
    }
  }
  return Status::Ok();
}

RemoteFileSystem::RemoteFileSystem(std::string db_path, SnapshotBody body,
                                   std::shared_ptr<const BlobReader> blobs)
    : FileSystemWrapper(rocksdb::FileSystem::Default()),
      db_path_(std::move(db_path)),
      body_(std::move(body)),
      blobs_(std::move(blobs)) {
  small_["CURRENT"] = body_.manifest_name + "\n";
  small_[body_.manifest_name] = body_.manifest;
  small_["IDENTITY"] = ToHex(body_.format.store_id);  // or RocksDB would write one
  std::map<std::string, int> users;
  for (const BodyTable& table : body_.tables) {
    tables_[table.name] = &table;
    const uint64_t first = table.where.offset, end = first + table.where.bytes;
    const auto [it, is_new] = packs_.emplace(table.where.blob, std::pair(first, end));
    it->second = {std::min(it->second.first, first), std::max(it->second.second, end)};
    ++users[table.where.blob];
  }
  std::erase_if(packs_, [&](const auto& pack) {
    const auto& [first, end] = pack.second;
    return users[pack.first] < 2 || end - first > kSmallPackBytes;
  });
}

std::string RemoteFileSystem::NameIn(const std::string& path) const {
  if (!path.starts_with(db_path_ + "/")) return {};
  const size_t at = path.find_first_not_of('/', db_path_.size());
  return at == path.npos ? "" : path.substr(at);
}

IOStatus RemoteFileSystem::NewSequentialFile(const std::string& name, const FileOptions&,
                                             std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                             IODebugContext*) {
  const auto it = small_.find(NameIn(name));
  if (it == small_.end()) return IOStatus::PathNotFound(name);
  *result = std::make_unique<MemoryFile>(&it->second);
  return IOStatus::OK();
}

IOStatus RemoteFileSystem::NewRandomAccessFile(const std::string& name, const FileOptions&,
                                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                               IODebugContext*) {
  const auto it = tables_.find(NameIn(name));
  if (it == tables_.end()) return IOStatus::PathNotFound(name);
  const BlobRange& where = it->second->where;
  std::shared_ptr<const std::string> bytes;
  uint64_t at = 0;
  if (const auto pack = packs_.find(where.blob); pack != packs_.end()) {
    const auto& [first, end] = pack->second;
    const std::lock_guard lock(mutex_);  // of all who need a pack, one fetches it
    std::shared_ptr<const std::string>& fetched = fetched_[where.blob];
    if (fetched == nullptr) {
      std::string text(end - first, '\0');
      const Status status = blobs_->Read(
          where.blob, end, first, std::as_writable_bytes(std::span(text.data(), text.size())));
      if (!status.ok()) return ToIoStatus(status);
      fetched = std::make_shared<const std::string>(std::move(text));
    }
    bytes = fetched;
    at = where.offset - first;
  }
  *result = std::make_unique<TableFile>(where, blobs_, std::move(bytes), at);
  return IOStatus::OK();
}

IOStatus RemoteFileSystem::NewWritableFile(const std::string& name, const FileOptions&,
                                           std::unique_ptr<rocksdb::FSWritableFile>*,
                                           IODebugContext*) {
  return ReadOnly(name);
}

IOStatus RemoteFileSystem::FileExists(const std::string& name, const IOOptions&, IODebugContext*) {
  const std::string found = NameIn(name);
  const bool exists = small_.contains(found) || tables_.contains(found) || name == db_path_;
  return exists ? IOStatus::OK() : IOStatus::NotFound(name);
}

IOStatus RemoteFileSystem::GetChildren(const std::string& folder, const IOOptions&,
                                       std::vector<std::string>* names, IODebugContext*) {
  names->clear();
  if (folder != db_path_ && folder != db_path_ + "/") return IOStatus::PathNotFound(folder);
  for (const auto& [name, bytes] : small_) names->push_back(name);
  for (const auto& [name, table] : tables_) names->push_back(name);
  return IOStatus::OK();
}

IOStatus RemoteFileSystem::GetFileSize(const std::string& name, const IOOptions&, uint64_t* size,
                                       IODebugContext*) {
  const std::string found = NameIn(name);
  if (const auto it = small_.find(found); it != small_.end()) {
    *size = it->second.size();
  } else if (const auto table = tables_.find(found); table != tables_.end()) {
    *size = table->second->where.bytes;
  } else {
    return IOStatus::PathNotFound(name);
  }
  return IOStatus::OK();
}

IOStatus RemoteFileSystem::GetAbsolutePath(const std::string& path, const IOOptions&,
                                           std::string* absolute, IODebugContext*) {
  *absolute = path;
  return IOStatus::OK();
}

}  // namespace varve::internal
