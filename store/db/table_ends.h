// SPDX-License-Identifier: Apache-2.0
//
// What RocksDB reads of a new table to learn its first and last key. An ingest of RocksDB 7.8 does
// not look at the error of the read of the last block, and ends the process after one
// (ExternalSstFileIngestionJob::GetIngestedFileInfo). So Varve reads the same before, where an
// error is only an error, and the ingest gets the bytes from memory. Thread rule: one thread.
#pragma once

#include <rocksdb/file_system.h>

#include <cstdint>
#include <map>
#include <string>

namespace varve::internal {

class TableEnds {
 public:
  // Reads and verifies the ends of the table, the index between them, and what describes them.
  static rocksdb::Status Read(const std::string& path, TableEnds* ends);

  // Returns false if the range was not read before.
  bool Serve(uint64_t offset, size_t size, rocksdb::Slice* result, char* scratch) const;

  void Keep(uint64_t offset, const rocksdb::Slice& bytes);

 private:
  std::map<uint64_t, std::string> ranges_;  // by their offset in the file
};

}  // namespace varve::internal
