// SPDX-License-Identifier: Apache-2.0
//
// Buffer: a vector whose first element is aligned to a cache line.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace gpt {

// Gives the same alignment in every run, because vectorised loops may add in another order at
// another alignment.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <typename U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kAlignment); }
  bool operator==(const CacheLineAllocator&) const = default;
};

template <typename T>
using Buffer = std::vector<T, CacheLineAllocator<T>>;

}  // namespace gpt
