// SPDX-License-Identifier: Apache-2.0
//
// A growing byte buffer that does not clear its memory. Resizing a vector first writes zeros to
// every byte, which costs as much as a copy of the chunk.
//
//   ByteBuffer out;
//   uint8_t* room = out.Room(100);  // at least 100 bytes to write to
//   out.Advance(written);
//
// Thread rule: one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace varve::internal {

class ByteBuffer {
 public:
  // Returns a pointer to num_bytes of room after the end. It is valid until the next call of Room
  // or Append.
  uint8_t* Room(size_t num_bytes) {
    if (capacity_ - size_ < num_bytes) Grow(size_ + num_bytes);
    return bytes_.get() + size_;
  }
  void Advance(size_t num_bytes) { size_ += num_bytes; }

  template <typename T>
  void Append(T value) {
    std::memcpy(Room(sizeof(T)), &value, sizeof(T));
    size_ += sizeof(T);
  }
  void AppendBytes(const uint8_t* bytes, size_t num_bytes) {
    if (num_bytes == 0) return;  // `bytes` may be null then
    std::memcpy(Room(num_bytes), bytes, num_bytes);
    size_ += num_bytes;
  }
  // Cuts off the end. new_size is at most size().
  void Truncate(size_t new_size) { size_ = new_size; }

  uint8_t* data() { return bytes_.get(); }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span<const uint8_t>(bytes_.get(), size_));
  }

 private:
  void Grow(size_t wanted) {
    const size_t capacity = std::max(wanted, capacity_ + capacity_ / 2);
    auto bytes = std::make_unique_for_overwrite<uint8_t[]>(capacity);
    if (size_ > 0) std::memcpy(bytes.get(), bytes_.get(), size_);
    bytes_ = std::move(bytes);
    capacity_ = capacity;
  }

  std::unique_ptr<uint8_t[]> bytes_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace varve::internal
