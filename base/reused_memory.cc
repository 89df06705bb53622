// SPDX-License-Identifier: Apache-2.0
#include "base/reused_memory.h"

#include <array>
#include <atomic>
#include <new>

namespace varve::internal {

namespace {

constexpr size_t kMaxKept = 16;
constexpr size_t kLeastKept = size_t{128} << 10;  // malloc keeps what is smaller
constexpr size_t kMostKept = size_t{1280} << 10;  // the frame of a chunk of 1 MiB, as it is
constexpr size_t kStep = size_t{256} << 10;       // so that buffers of several sizes fit each other
constexpr std::align_val_t kAlignment{64};

// It stands before the bytes that are given out.
struct alignas(64) Header {
  size_t capacity;  // of the bytes
};

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#elif defined(__has_feature)
constexpr bool kKeeps = !__has_feature(address_sanitizer);
#else
constexpr bool kKeeps = true;
#endif

std::array<std::atomic<Header*>, kMaxKept> kept;

void Free(Header* header) noexcept { ::operator delete(header, kAlignment); }

bool Keep(Header* header) noexcept {
  for (std::atomic<Header*>& place : kept) {
    Header* empty = nullptr;
    if (place.compare_exchange_strong(empty, header, std::memory_order_acq_rel)) return true;
  }
  return false;
}

}  // namespace

bool KeepsMemory() { return kKeeps; }

void* TakeMemory(size_t bytes) {
  if (bytes >= kLeastKept && bytes <= kMostKept) {
    bytes = (bytes + kStep - 1) / kStep * kStep;
    for (std::atomic<Header*>& place : kept) {
      if (place.load(std::memory_order_relaxed) == nullptr) continue;
      Header* const header = place.exchange(nullptr, std::memory_order_acq_rel);
      if (header == nullptr) continue;
      if (header->capacity >= bytes) return header + 1;
      if (!Keep(header)) Free(header);
    }
  }
  auto* const header = static_cast<Header*>(::operator new(sizeof(Header) + bytes, kAlignment));
  header->capacity = bytes;
  return header + 1;
}

void GiveMemory(void* memory) noexcept {
  if (memory == nullptr) return;
  Header* const header = static_cast<Header*>(memory) - 1;
  const bool is_kept =
      kKeeps && header->capacity >= kLeastKept && header->capacity <= kMostKept && Keep(header);
  if (!is_kept) Free(header);
}

}  // namespace varve::internal
