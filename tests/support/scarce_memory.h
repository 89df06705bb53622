// SPDX-License-Identifier: Apache-2.0
//
// The allocator of this program, which scarce_memory.cc replaces, refuses allocations while an
// object of this header lives. Thread rule: one object at a time. The program's threads may
// allocate.
#pragma once

#include <cstddef>
#include <cstdint>

namespace varve::internal::testing {

// It refuses large allocations.
class ScarceMemory {
 public:
  explicit ScarceMemory(size_t most_bytes_at_once);
  ~ScarceMemory();
  ScarceMemory(const ScarceMemory&) = delete;
  ScarceMemory& operator=(const ScarceMemory&) = delete;

  // Returns the bytes of the largest allocation that was asked for meanwhile, and those of all.
  size_t largest() const;
  size_t total() const;
};

// Returns the bytes of all allocations that this thread has asked for.
size_t AskedByThisThread();
// Returns the bytes that this thread has allocated, less those that it has freed.
int64_t KeptByThisThread();

// It refuses `count` allocations, from that with number `first` on. The first of all has number 0.
class FailingAllocations {
 public:
  enum class Threads {
    kAll,
    kNew,  // only threads that allocate for the first time while the object lives
  };
  FailingAllocations(uint64_t first, uint64_t count, Threads threads = Threads::kAll);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  // Whether there were so many allocations that one was refused.
  bool has_struck() const;
};

}  // namespace varve::internal::testing
