// SPDX-License-Identifier: Apache-2.0
//
// Reads small parts of a file out of pages of it that are kept for a while. A file of many small
// tensors is then read in few calls. The parts may come in any order. Which pages are kept depends
// on their places alone, so reads far apart do not evict what lies next to them. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cli/formats/input_file.h"

namespace varve::internal::formats {

class SmallReads {
 public:
  static constexpr size_t kPageBytes = size_t{16} << 10;

  explicit SmallReads(std::shared_ptr<const InputFile> file) : file_(std::move(file)) {}

  // As InputFile::Read. What comes from a kept page is as the file was when the page was read. So
  // ask CheckUnchanged once all is read.
  Status Read(std::span<const std::byte> part, std::byte* out);
  Status CheckUnchanged() const { return file_->CheckUnchanged(); }

  // For tests: the reads of the file.
  uint64_t num_reads_for_test() const { return num_reads_; }

 private:
  static constexpr size_t kPages = 64;
  struct Page {
    uint64_t number = UINT64_MAX;
    std::vector<std::byte> bytes;
  };

  const std::shared_ptr<const InputFile> file_;
  std::mutex mutex_;
  std::array<Page, kPages> pages_;  // guarded by mutex_
  uint64_t num_reads_ = 0;          // guarded by mutex_
};

}  // namespace varve::internal::formats
