// SPDX-License-Identifier: Apache-2.0
//
// Makes calls of this process fail on purpose. A program that links failing_io.cc gets its own
// calls of the file system, so the faults lie under RocksDB and under varve's own files alike.
// Thread-safe. Only one FailingIo may exist at a time.
//
// The names of calls that change files: write, pwrite, fsync, fdatasync, sync_file_range, create
// (an open for writing), mkdir, rename (renameat2, too), link (linkat, too), symlink, unlink (each
// call that removes a name), ftruncate, fallocate (posix_fallocate, too), times (futimens,
// utimensat), mode (chmod) and owner (lchown). The names of calls that read: open (for reading, of
// a folder as well), opendir, readdir, read and pread.
#pragma once

#include <cstdint>
#include <string>

namespace varve::internal::testing {

class FailingIo {
 public:
  struct Plan {
    std::string path;    // calls on files whose path holds this ...
    std::string call;    // ... and of this name. "writes" = write and pwrite, "syncs" = the three,
                         // "reads" = all that read. Empty = all that change files ...
    uint64_t first = 0;  // ... fail from this one on, counted from 0 ...
    uint64_t count = 1;  // ... so many of them ...
    uint64_t every = 1;  // ... 3: not each of them, but every third ...
    int error = 0;       // ... with this errno. 0 = none fails, they are only counted
    bool after = false;  // fail after the call was carried out
    // The first write of the plan writes half of its bytes, and says so. The next ones fail with
    // `error`. Without an error all of them write half.
    bool short_write = false;
    // A sync that fails loses what was written since the last sync: it reads as zeros. Linux may do
    // so after an error of the disk, and says that error once.
    bool lose = false;
    // A mistake of the program, planted: it takes the call that failed for done, and the short
    // write for whole.
    bool swallow = false;
  };
  explicit FailingIo(Plan plan);
  ~FailingIo();
  FailingIo(const FailingIo&) = delete;
  FailingIo& operator=(const FailingIo&) = delete;

  // Calls so far that the plan speaks of.
  uint64_t num_calls() const;
  // Returns what failed last, such as "fdatasync /tmp/.../MANIFEST-000004". Empty = nothing.
  std::string failed() const;
};

}  // namespace varve::internal::testing
