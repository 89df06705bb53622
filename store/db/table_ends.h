// SPDX-License-Identifier: Apache-2.0
//
// What RocksDB reads of a new table to learn its first and last key. An ingest of RocksDB 7.8 does
// not look at the errors of these reads (ExternalSstFileIngestionJob::GetIngestedFileInfo). After
// one at the first block it would commit a table without bounds, so that its keys are hidden. After
// one at the last of several blocks an assert ends the process. So both blocks are read and
// verified before, and the ingest gets their bytes from memory. A table whose last block has one
// key has the block before it read, too. Thread rule: one thread.
#pragma once

#include <rocksdb/file_system.h>

#include <cstdint>
#include <map>
#include <string>

namespace varve::internal {

class TableEnds {
 public:
  // Reads and verifies the first and the last block, and whatever RocksDB reads to find them. All
  // these bytes are held until this object goes. Of data these are three blocks at most, each of
  // which has up to 16 KiB or one larger frame. If the disk fails, it is asked a second time.
  rocksdb::Status Read(const std::string& path);

  // Returns false if the range was not read before.
  bool Serve(uint64_t offset, size_t size, rocksdb::Slice* result, char* scratch) const;

  // Notes what was read. Read calls it.
  void Keep(uint64_t offset, const rocksdb::Slice& bytes);

 private:
  rocksdb::Status TryToRead(const std::string& path);

  std::map<uint64_t, std::string> ranges_;  // by their offset in the file
};

}  // namespace varve::internal
