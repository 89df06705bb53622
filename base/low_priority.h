// SPDX-License-Identifier: Apache-2.0
//
// Work that gives way to whatever else the machine does: to a trainer, above all.
#pragma once

#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <thread>
#include <vector>

namespace varve {

// Lowers the priority of the calling thread (nice 10), for good: without privileges no thread gets
// its priority back. Hence only for threads of our own.
void LowerThreadPriority();

// Threads of low priority that work in an arena, from the constructor to the destructor. TBB's own
// workers cannot be used: they are the trainer's as well. The arena must have a reserved slot for
// each of them and one for the caller.
class LowPriorityHelpers {
 public:
  LowPriorityHelpers(tbb::task_arena* arena, int count);
  ~LowPriorityHelpers();
  LowPriorityHelpers(const LowPriorityHelpers&) = delete;
  LowPriorityHelpers& operator=(const LowPriorityHelpers&) = delete;

 private:
  tbb::task_arena* const arena_;
  tbb::task_group group_;
  tbb::task_handle last_;  // of group_: what the helpers wait for, and work meanwhile
  std::vector<std::jthread> threads_;
};

}  // namespace varve
