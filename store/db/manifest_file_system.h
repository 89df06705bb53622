// SPDX-License-Identifier: Apache-2.0
//
// A file system of RocksDB whose manifests have no torn end. A power cut may tear the record of a
// manifest that was being written, and RocksDB would call that damage. Here a manifest ends before
// such a record, if it lies behind all that SYNCED says was synced (manifest_note.h). A record that
// was synced and cannot be read is still damage.
//
// No OPTIONS files are written, because varve makes its options anew each time. RocksDB reads back
// what it has written of them, which takes longer than the rest of its opening of a small database.
// Older stores have such files. RocksDB asks for the length of the newest, and opens no database to
// read without it. Nobody uses that length, so here it has one always.
//
// A folder, a pipe or a device where RocksDB expects a file is damage, too. Opening a pipe would
// wait for ever. Thread-safe.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <cstdint>
#include <memory>
#include <string>

namespace varve::internal {

class ManifestFileSystem : public rocksdb::FileSystemWrapper {
 public:
  ManifestFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}

  static const char* kClassName() { return "varve.ManifestFileSystem"; }
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
  rocksdb::IOStatus GetFileSize(const std::string& name, const rocksdb::IOOptions& options,
                                uint64_t* size, rocksdb::IODebugContext* debug) override;
};

// An environment with that file system. It is never destroyed.
rocksdb::Env* ManifestEnv();

}  // namespace varve::internal
