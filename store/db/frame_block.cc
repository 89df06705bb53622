// SPDX-License-Identifier: Apache-2.0
#include "store/db/frame_block.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "base/coding.h"

namespace varve::internal {

namespace {

constexpr size_t kKeyBytes = 12;     // keys::Chunk
constexpr size_t kSuffixBytes = 8;   // RocksDB's type (1 byte) and sequence number (7 bytes)
constexpr uint64_t kPlainValue = 1;  // a value with sequence number 0

// Takes a number of 7 bits a byte, the lowest first.
bool TakeVarint(ByteReader* reader, uint32_t* value) {
  *value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    uint8_t byte = 0;
    if (!reader->Take(&byte)) return false;
    if (shift == 28 && byte > 0x0f) return false;
    *value |= static_cast<uint32_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

class Entries {
  using Key = std::array<std::byte, kKeyBytes + kSuffixBytes>;

 public:
  Entries(std::span<const std::byte> entries, std::span<const std::byte> restarts)
      : entries_(entries), restarts_(restarts) {}

  bool AreSound() {
    ByteReader reader(entries_);
    while (!reader.rest().empty()) {
      const bool is_restart = next_restart_ < num_restarts() &&
                              Restart(next_restart_) == entries_.size() - reader.rest().size();
      if (is_restart) ++next_restart_;
      if (!TakeEntry(&reader, is_restart)) return false;
    }
    return next_restart_ == num_restarts();
  }

 private:
  size_t num_restarts() const { return restarts_.size() / sizeof(uint32_t); }
  uint32_t Restart(size_t index) const {
    return LoadLittle<uint32_t>(restarts_.data() + index * sizeof(uint32_t));
  }

  bool TakeEntry(ByteReader* reader, bool is_restart) {
    uint32_t num_shared = 0;  // bytes of the key before that this key begins with
    uint32_t num_own = 0;
    uint32_t value_bytes = 0;
    if (!TakeVarint(reader, &num_shared) || !TakeVarint(reader, &num_own) ||
        !TakeVarint(reader, &value_bytes)) {
      return false;
    }
    const bool is_first = is_at_first_;
    is_at_first_ = false;
    if (is_first && !is_restart) return false;
    if (is_restart && num_shared != 0) return false;
    if (uint64_t{num_shared} + num_own != key_.size()) return false;
    const Key before = key_;
    std::span<const std::byte> own;
    std::span<const std::byte> value;
    if (!reader->TakeSpan(num_own, &own) || !reader->TakeSpan(value_bytes, &value)) return false;
    std::memcpy(key_.data() + num_shared, own.data(), own.size());
    if (LoadLittle<uint64_t>(key_.data() + kKeyBytes) != kPlainValue) return false;
    return is_first || std::memcmp(before.data(), key_.data(), kKeyBytes) < 0;
  }

  std::span<const std::byte> entries_;
  std::span<const std::byte> restarts_;
  size_t next_restart_ = 0;
  bool is_at_first_ = true;
  Key key_{};  // the last one
};

}  // namespace

bool HasSoundEntries(std::span<const std::byte> block) {
  if (block.size() < kBlockTrailerBytes + sizeof(uint32_t)) return false;
  if (block[block.size() - kBlockTrailerBytes] != std::byte{0}) return false;  // compressed
  block = block.first(block.size() - kBlockTrailerBytes - sizeof(uint32_t));
  const auto num_restarts = LoadLittle<uint32_t>(block.data() + block.size());
  const uint64_t restart_bytes = uint64_t{num_restarts} * sizeof(uint32_t);
  if (num_restarts == 0 || restart_bytes >= block.size()) return false;
  const size_t entry_bytes = block.size() - restart_bytes;
  return Entries(block.first(entry_bytes), block.subspan(entry_bytes)).AreSound();
}

}  // namespace varve::internal
