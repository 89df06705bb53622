// SPDX-License-Identifier: Apache-2.0
//
// The files of a snapshot, as RocksDB sees them. Nothing can be written. CURRENT and the manifest
// come from the body. Table files are ranges of blobs. Small ones that were put together are
// fetched together. Thread rule: any thread.
#pragma once

#include <rocksdb/file_system.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "objects/objects.h"
#include "store/remote/block_cache.h"
#include "store/remote/buffer_pool.h"
#include "store/remote/remote_state.h"

namespace varve::internal {

// Reads parts of blobs through the cache, in whole blocks.
class BlobReader {
 public:
  // Returns the error of a blob that is missing or too short, from what is known of it: the blob
  // may belong to a snapshot that was removed.
  using Explain = std::function<Status(Status error)>;

  // `cache` may be null.
  BlobReader(std::shared_ptr<Objects> objects, std::unique_ptr<BlockCache> cache, Explain explain)
      : objects_(std::move(objects)), cache_(std::move(cache)), explain_(std::move(explain)) {}

  // Fills `out`. `blob_end` is where the part of the blob that may be read ends.
  Status Read(const std::string& blob, uint64_t blob_end, uint64_t offset,
              std::span<std::byte> out) const;

  BufferPool* buffers() const { return &buffers_; }
  // Returns why a read has failed. Ok: none has. RocksDB does not tell an object store that does
  // not answer, or a snapshot that was removed, from damage. If damage is only one of the causes,
  // this is another one.
  Status failure() const;

 private:
  Status Fetch(const std::string& blob, uint64_t offset, std::span<std::byte> out) const;
  Status FetchOnce(const std::string& blob, uint64_t offset, std::span<std::byte> out) const;

  const std::shared_ptr<Objects> objects_;
  const std::unique_ptr<BlockCache> cache_;
  const Explain explain_;
  mutable BufferPool buffers_;
  mutable std::mutex mutex_;
  mutable Status failure_;  // guarded by mutex_
};

class RemoteFileSystem : public rocksdb::FileSystemWrapper {
 public:
  // `db_path` is the folder that the database seems to lie in.
  RemoteFileSystem(std::string db_path, SnapshotBody body, std::shared_ptr<const BlobReader> blobs);

  static const char* kClassName() { return "varve.RemoteFileSystem"; }
  const char* Name() const override { return kClassName(); }

  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus FileExists(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetChildren(const std::string& folder, const rocksdb::IOOptions& options,
                                std::vector<std::string>* names,
                                rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetFileSize(const std::string& name, const rocksdb::IOOptions& options,
                                uint64_t* size, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetAbsolutePath(const std::string& path, const rocksdb::IOOptions& options,
                                    std::string* absolute, rocksdb::IODebugContext* debug) override;

 private:
  // Returns what stands behind the folder's name, or an empty text.
  std::string NameIn(const std::string& path) const;

  const std::string db_path_;
  const SnapshotBody body_;
  const std::shared_ptr<const BlobReader> blobs_;
  std::map<std::string, std::string> small_;                    // CURRENT and the manifest
  std::map<std::string, const BodyTable*> tables_;              // by name
  std::map<std::string, std::pair<uint64_t, uint64_t>> packs_;  // blob -> first and end, if small
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const std::string>> fetched_;  // packs. By mutex_
};

}  // namespace varve::internal
