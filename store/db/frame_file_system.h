// SPDX-License-Identifier: Apache-2.0
//
// A file system of RocksDB that looks at the blocks of frames before RocksDB does. Reading frames
// leaves their bytes to the digest of the chunk, because the checksum of a block would cost a third
// of a restore of raw tensors. But RocksDB must not see damaged keys and lengths (frame_block.h).
// So the read of a block that does not look sound fails here. It may be repeated with
// verify_checksums. Thread-safe.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

namespace varve::internal {

class FrameFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit FrameFileSystem(
      const std::shared_ptr<rocksdb::FileSystem>& base = rocksdb::FileSystem::Default())
      : FileSystemWrapper(base) {}

  static const char* kClassName() { return "varve.FrameFileSystem"; }
  const char* Name() const override { return kClassName(); }

  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override;

  // While one lives, each block that its thread reads from a table is looked at. Hold it around a
  // read of a frame without verify_checksums. It does not nest.
  class ReadOfFrame {
   public:
    ReadOfFrame();
    ReadOfFrame(const ReadOfFrame&) = delete;
    ReadOfFrame& operator=(const ReadOfFrame&) = delete;
    ~ReadOfFrame();
  };
};

}  // namespace varve::internal
