// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scarce_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> most_allowed = SIZE_MAX;  // bytes of one allocation
std::atomic<size_t> largest_asked = 0;
std::atomic<size_t> asked_in_all = 0;
thread_local size_t asked_by_this_thread = 0;
thread_local int64_t kept_by_this_thread = 0;
std::atomic<uint64_t> allocations = 0;
std::atomic<uint64_t> first_to_fail = UINT64_MAX, end_of_failures = 0;  // of these numbers

std::atomic<uint64_t> objects_made = 0;
thread_local const uint64_t made_before_thread = objects_made;  // set by its first allocation
std::atomic<bool> spares_old_threads = false;

bool IsNextToFail() {
  const bool is_old =
      made_before_thread != objects_made;  // each allocation looks, as the first must
  if (spares_old_threads && is_old) return false;
  const uint64_t number = allocations.fetch_add(1, std::memory_order_relaxed);
  return number >= first_to_fail && number < end_of_failures;
}

}  // namespace

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  asked_in_all += size;
  asked_by_this_thread += size;
  size_t known = largest_asked;
  while (size > known && !largest_asked.compare_exchange_weak(known, size)) {
  }
  if (size > most_allowed || IsNextToFail()) return nullptr;
  void* const memory = std::malloc(size);
  kept_by_this_thread += static_cast<int64_t>(::malloc_usable_size(memory));
  return memory;
}
void* operator new(size_t size) {
  void* const memory = ::operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  kept_by_this_thread -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { ::operator delete(memory); }

namespace varve::internal::testing {

ScarceMemory::ScarceMemory(size_t most_bytes_at_once) {
  largest_asked = asked_in_all = 0;
  most_allowed = most_bytes_at_once;
}
ScarceMemory::~ScarceMemory() { most_allowed = SIZE_MAX; }

size_t ScarceMemory::largest() const { return largest_asked; }
size_t ScarceMemory::total() const { return asked_in_all; }

size_t AskedByThisThread() { return asked_by_this_thread; }
int64_t KeptByThisThread() { return kept_by_this_thread; }

FailingAllocations::FailingAllocations(uint64_t first, uint64_t count, Threads threads) {
  ++objects_made;
  spares_old_threads = threads == Threads::kNew;
  allocations = 0;
  end_of_failures = first + count;
  first_to_fail = first;
}
FailingAllocations::~FailingAllocations() {
  first_to_fail = UINT64_MAX;
  spares_old_threads = false;
}

bool FailingAllocations::has_struck() const { return allocations > first_to_fail; }

}  // namespace varve::internal::testing
