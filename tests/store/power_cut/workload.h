// SPDX-License-Identifier: Apache-2.0
//
// A workload whose changes of the disk are recorded, and what a store holds after each of its
// operations. One thread at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/store/internals.h"
#include "tests/support/disk_record.h"

namespace varve::internal::testing {

using Ops = std::vector<DiskOp>;
using Tensors = std::shared_ptr<const std::vector<TestTensor>>;

// What a store holds, or that there is none.
struct State {
  bool exists = false;
  std::map<std::pair<std::string, uint64_t>, Tensors> steps;
  std::map<std::pair<std::string, std::string>, uint64_t> tags;

  // The order of tensors is that of their names.
  void Put(const CheckpointId& id, std::vector<TestTensor> tensors);
};

bool Equal(const State& a, const State& b);
std::string ToString(const State& state);
Result<State> ReadState(const Store& store);

// Tensors with deltas, a derived tensor and shared bytes.
std::vector<TestTensor> ContentOfStep(uint64_t step);
Status SaveContentOf(Store* store, const CheckpointId& id, uint64_t content,
                     OnExisting on_existing = OnExisting::kError);

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
