// SPDX-License-Identifier: Apache-2.0
//
// Memory for large buffers that live for a moment, such as a frame while it is decoded. The system
// gives memory page by page and clears each page, which takes longer than to decode into it. So
// some of what is given back is kept for the next buffer: at most 16 buffers of at most 1.25 MiB.
// Thread rule: any thread. It takes no lock, so a process may fork at any moment.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace varve::internal {

// False in a build with AddressSanitizer, which would not see that memory is used after it was
// given back. Such a build keeps nothing.
bool KeepsMemory();
// Returns at least `bytes`, aligned to 64. Their content is anything. Throws std::bad_alloc.
void* TakeMemory(size_t bytes);
// Gives back what TakeMemory has returned. nullptr is nothing.
void GiveMemory(void* memory) noexcept;

// A buffer of such memory. Thread rule: one thread at a time.
class ReusedBuffer {
 public:
  ReusedBuffer() = default;
  ReusedBuffer(ReusedBuffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  ReusedBuffer& operator=(ReusedBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~ReusedBuffer() { GiveMemory(memory_); }

  // The bytes are anything after that.
  std::span<std::byte> Resize(size_t bytes) {
    if (bytes > capacity_) {
      GiveMemory(std::exchange(memory_, nullptr));
      size_ = capacity_ = 0;
      memory_ = TakeMemory(bytes);
      capacity_ = bytes;
    }
    size_ = bytes;
    return this->bytes();
  }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), size_}; }

 private:
  void* memory_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace varve::internal
