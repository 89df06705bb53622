// SPDX-License-Identifier: Apache-2.0
//
// While one lives, the allocator of this program, which scarce_memory.cc replaces, refuses large
// allocations. Thread rule: one at a time. The program's threads may allocate.
#pragma once

#include <cstddef>

namespace varve::internal::testing {

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

}  // namespace varve::internal::testing
