// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/counted_allocations.h"

#include <cstdlib>
#include <new>

namespace {

thread_local int64_t num_allocations = 0;

}  // namespace

void* operator new(size_t size) {
  ++num_allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

int64_t varve::internal::testing::NumAllocations() { return num_allocations; }
