// SPDX-License-Identifier: Apache-2.0
//
// A queue of references to release, ordered by the address of what they name, highest first. What
// does not fit in memory waits in a temporary file as sorted runs. Thread rule: one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <queue>
#include <vector>

#include "varve/result.h"

namespace varve::internal {

// One reference to the chunk or list `number` of a save. `bytes` belongs to the address: it is, for
// example, the size of the frame.
struct Release {
  uint64_t save_id = 0;
  uint32_t number = 0;
  uint32_t bytes = 0;

  bool operator<(const Release& other) const {
    return save_id != other.save_id ? save_id < other.save_id : number < other.number;
  }
};

class ReleaseQueue {
 public:
  // The most releases in memory: 16 MiB.
  static constexpr size_t kMaxInMemory = size_t{1} << 20;

  explicit ReleaseQueue(size_t max_in_memory = kMaxInMemory);
  ReleaseQueue(const ReleaseQueue&) = delete;
  ReleaseQueue& operator=(const ReleaseQueue&) = delete;
  ~ReleaseQueue();

  // May be called at any time, also between calls of Pop. The address must not be above the last
  // one that was popped.
  Status Push(const Release& release);

  // Returns the highest address and how often it was pushed, or nullopt when the queue is empty.
  struct Released {
    Release what;
    uint64_t times = 0;
  };
  Result<std::optional<Released>> Pop();

  size_t num_runs_for_test() const { return runs_.size(); }

 private:
  class Run;
  struct Head {  // The next release of a run.
    Release release;
    size_t run = 0;
    bool operator<(const Head& other) const { return release < other.release; }
  };

  Status Spill();
  Result<std::optional<Release>> PopOne();
  const Release* Highest() const;  // null = the queue is empty

  const size_t max_in_memory_;
  std::vector<Release> heap_;
  int file_ = -1;
  uint64_t file_bytes_ = 0;
  std::vector<std::unique_ptr<Run>> runs_;
  std::priority_queue<Head> heads_;
};

}  // namespace varve::internal
