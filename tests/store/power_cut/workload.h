// SPDX-License-Identifier: Apache-2.0
//
// A workload whose changes of the disk are recorded, and what a store holds after each of its
// operations. One thread at a time.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/store/store_state.h"
#include "tests/support/disk_record.h"

namespace varve::internal::testing {

using Ops = std::vector<DiskOp>;
// A recorded workload. Before operation k of the workload there is a mark 2k, and a mark 2k + 1
// when it has returned.
struct Recorded {
  Ops ops;
  size_t first = 0;  // what comes before was there at the start
  std::vector<std::string> names;
  std::vector<State> states, copies;  // after each operation: of the store, and of its backup
};

// Records what operations change below `root`.
class Recorder {
 public:
  explicit Recorder(std::filesystem::path root) : root_(std::move(root)), record_(root_) {}

  // Runs an operation between two marks. Then `change` makes `now` and `backup` what is there.
  void Run(
      const std::string& name, const std::function<Status()>& operation,
      const std::function<void()>& change = [] {});

  // Ends the record. `image` is a folder to make.
  Recorded Finish(const std::filesystem::path& image);

  State now, backup;

 private:
  const std::filesystem::path root_;
  DiskRecord record_;
  Recorded recorded_;
};

}  // namespace varve::internal::testing
