// SPDX-License-Identifier: Apache-2.0
//
// A file in memory, which RocksDB reads in the place of one on the disk. Thread rule: one thread.
#pragma once

#include <rocksdb/file_system.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace varve::internal {

class ServedFile : public rocksdb::FSSequentialFile {
 public:
  explicit ServedFile(std::string bytes) : bytes_(std::move(bytes)) {}

  rocksdb::IOStatus Read(size_t size, const rocksdb::IOOptions&, rocksdb::Slice* result,
                         char* scratch, rocksdb::IODebugContext*) override {
    const size_t read = bytes_.copy(scratch, size, at_);
    *result = rocksdb::Slice(scratch, read);
    at_ += read;
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus Skip(uint64_t size) override {
    at_ = std::min<uint64_t>(bytes_.size(), at_ + size);
    return rocksdb::IOStatus::OK();
  }

 private:
  const std::string bytes_;
  size_t at_ = 0;
};

}  // namespace varve::internal
