// SPDX-License-Identifier: Apache-2.0
//
// Records every change that this process makes to the files below a folder, in the order in which
// it happens. So it lies under RocksDB's file system and under varve's own files alike. A program
// that links disk_record.cc gets its own open, write, fsync, rename and so on, as with
// failing_io.h. power_cut.h makes of such a record what a power cut leaves. Thread-safe. Only one
// DiskRecord may exist at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace varve::internal::testing {

// Files and folders have numbers. The folder that is recorded is 0.
struct DiskOp {
  enum class Kind {
    kFile,      // a new file `number` in `folder` under `name`
    kFolder,    // a new folder
    kLink,      // one more name of a file
    kUnlink,    // removes `name` from `folder`
    kRename,    // `name` in `folder` becomes `to_name` in `to_folder`, and replaces what is there
    kExchange,  // the two names change places
    kWrite,     // `bytes` at `at` of a file
    kTruncate,  // a file has `at` bytes
    kSync,      // a file or folder is synced
    kMark,      // nothing: `at` is a number of the test's
  };
  Kind kind = Kind::kMark;
  int number = 0;
  int folder = 0, to_folder = 0;
  std::string name, to_name;
  uint64_t at = 0;
  std::string bytes;
  std::string path;  // under which `number` was made, below the folder that is recorded
};

std::string ToString(const DiskOp& op);

class DiskRecord {
 public:
  // What lies below `root` already comes first in the record, as synced.
  explicit DiskRecord(const std::filesystem::path& root);
  ~DiskRecord();
  DiskRecord(const DiskRecord&) = delete;
  DiskRecord& operator=(const DiskRecord&) = delete;

  void Mark(uint64_t number);
  // Ends the record. `first` operations were there at the start.
  std::vector<DiskOp> Finish();
  size_t first() const { return first_; }

 private:
  size_t first_ = 0;
};

}  // namespace varve::internal::testing
