// SPDX-License-Identifier: Apache-2.0
//
// Makes calls of this process fail on purpose. A program that links failing_io.cc gets its own
// write, pwrite, fsync, fdatasync, rename, link and unlink, and for plans that name them, open for
// reading and opendir. Thread-safe. Only one FailingIo may exist at a time.
#pragma once

#include <cstdint>
#include <string>

namespace varve::internal::testing {

class FailingIo {
 public:
  struct Plan {
    std::string path;    // calls on files whose path holds this ...
    std::string call;    // ... and of this name, or of any but these two when empty ...
    uint64_t first = 0;  // ... fail from this one on, counted from 0 ...
    uint64_t count = 1;  // ... so many of them ...
    int error = 0;       // ... with this errno. 0 = none fails, they are only counted
    bool after = false;  // fail after the call was carried out
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
