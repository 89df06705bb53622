// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scarce_memory.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> most_allowed = SIZE_MAX;  // bytes of one allocation
std::atomic<size_t> largest_asked = 0;
std::atomic<size_t> asked_in_all = 0;

}  // namespace

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  asked_in_all += size;
  size_t known = largest_asked;
  while (size > known && !largest_asked.compare_exchange_weak(known, size)) {
  }
  return size > most_allowed ? nullptr : std::malloc(size);
}
void* operator new(size_t size) {
  void* const memory = ::operator new(size, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace varve::internal::testing {

ScarceMemory::ScarceMemory(size_t most_bytes_at_once) {
  largest_asked = asked_in_all = 0;
  most_allowed = most_bytes_at_once;
}
ScarceMemory::~ScarceMemory() { most_allowed = SIZE_MAX; }

size_t ScarceMemory::largest() const { return largest_asked; }
size_t ScarceMemory::total() const { return asked_in_all; }

}  // namespace varve::internal::testing
