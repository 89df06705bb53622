// SPDX-License-Identifier: Apache-2.0
//
// Bounds-checked little-endian reading and writing of the fixed-size fields of a frame. Functions
// are stateless. A ByteReader belongs to one thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace varve::internal {

static_assert(std::endian::native == std::endian::little,
              "frames are little-endian and are read in place");

template <typename T>
T LoadLittle(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void StoreLittle(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(T));
}

// `to` is a string, or a vector of bytes.
template <typename T, typename Bytes>
void AppendLittle(T value, Bytes* to) {
  const size_t at = to->size();
  to->resize(at + sizeof(T));
  std::memcpy(to->data() + at, &value, sizeof(T));
}

inline void AppendBytes(std::span<const std::byte> bytes, std::vector<std::byte>* to) {
  to->insert(to->end(), bytes.begin(), bytes.end());
}

// Takes fields off the front of a span. When too few bytes are left, it returns false and takes
// nothing.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  [[nodiscard]] bool Take(T* value) {
    if (rest_.size() < sizeof(T)) return false;
    *value = LoadLittle<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }

  [[nodiscard]] bool TakeSpan(size_t num_bytes, std::span<const std::byte>* bytes) {
    if (rest_.size() < num_bytes) return false;
    *bytes = rest_.first(num_bytes);
    rest_ = rest_.subspan(num_bytes);
    return true;
  }

  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

// Puts fields one behind the other as long as there is room.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> room) : rest_(room), size_(room.size()) {}

  // Puts the lowest `num_bytes` bytes (at most 8) of `value`.
  void Put(uint64_t value, size_t num_bytes) {
    PutBytes(std::as_bytes(std::span(&value, 1)).first(num_bytes));
  }

  void PutBytes(std::span<const std::byte> bytes) {
    fits_ = fits_ && bytes.size() <= rest_.size();
    if (!fits_ || bytes.empty()) return;
    std::memcpy(rest_.data(), bytes.data(), bytes.size());
    rest_ = rest_.subspan(bytes.size());
  }

  // Returns the number of bytes that were put, or 0 when there was no room for all of them.
  size_t Finish() const { return fits_ ? size_ - rest_.size() : 0; }

 private:
  std::span<std::byte> rest_;
  size_t size_;
  bool fits_ = true;
};

}  // namespace varve::internal
