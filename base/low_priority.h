// SPDX-License-Identifier: Apache-2.0
//
// Work that gives way to everything else on the machine, above all to a trainer.
#pragma once

#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <thread>
#include <vector>

namespace varve::internal {

// Lowers the priority of the calling thread (nice 10) for good, because a thread without privileges
// cannot raise it again. Call it only on threads of our own.
void LowerThreadPriority();

// From now on the calling thread, and threads that it starts, run where a processor has nothing
// else to do (SCHED_IDLE), or next to nothing: 0.3 % of a processor that others keep busy. For work
// that can wait. Call it only on threads of our own.
void UseIdleProcessorsOnly();

// Threads of low priority that work in an arena while this object lives. TBB's own workers cannot
// be used, because the trainer uses them as well. The arena must have a reserved slot for each of
// these threads and one for the caller.
class LowPriorityHelpers {
 public:
  LowPriorityHelpers(tbb::task_arena* arena, int count);
  ~LowPriorityHelpers();
  LowPriorityHelpers(const LowPriorityHelpers&) = delete;
  LowPriorityHelpers& operator=(const LowPriorityHelpers&) = delete;

 private:
  tbb::task_arena* const arena_;
  tbb::task_group group_;
  tbb::task_handle last_;  // of group_: the helpers wait for it, and work meanwhile
  std::vector<std::jthread> threads_;
};

}  // namespace varve::internal
