// SPDX-License-Identifier: Apache-2.0
//
// A flatbuffer from the store that is verified before use, and aligned. RocksDB gives values at any
// address, but flatbuffers reads its fields in place. The only limit on the number of tables is the
// size of the input, so everything that a writer has encoded passes. Thread rule: constant after
// construction.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

namespace varve::internal {

// True when the elements of each vector lie at addresses where their type may be read. A vector may
// be absent. Decoders ask this of every vector whose elements have numbers of eight bytes, because
// the verifier of flatbuffers 2.0 looks only at the address of a vector's length.
template <typename... Elements>
bool AreAligned(const flatbuffers::Vector<Elements>*... vectors) {
  const auto is_aligned = []<typename E>(const flatbuffers::Vector<E>* vector) {
    using Element = std::remove_pointer_t<E>;  // the vector of a struct is one of pointers to it
    return vector == nullptr || vector->size() == 0 ||
           reinterpret_cast<uintptr_t>(vector->Data()) % alignof(Element) == 0;
  };
  return (is_aligned(vectors) && ...);
}

template <typename T>
class VerifiedBuffer {
 public:
  // Copies `value` when it is not aligned. Otherwise `value` must outlive this object.
  explicit VerifiedBuffer(std::string_view value) {
    if (value.size() >= FLATBUFFERS_MAX_BUFFER_SIZE) return;
    const auto* data = reinterpret_cast<const uint8_t*>(value.data());
    if (reinterpret_cast<uintptr_t>(data) % alignof(uint64_t) != 0) {
      uint64_t* copy = small_;
      if (value.size() > sizeof(small_)) {
        large_.resize((value.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
        copy = large_.data();
      }
      std::memcpy(copy, data, value.size());
      data = reinterpret_cast<const uint8_t*>(copy);
    }
    // A table has at least four bytes, and so has each reference to it.
    const auto max_tables = static_cast<flatbuffers::uoffset_t>(value.size() / 8 + 1);
    flatbuffers::Verifier verifier(data, value.size(), kMaxDepth, max_tables);
    if (verifier.VerifyBuffer<T>(nullptr)) root_ = flatbuffers::GetRoot<T>(data);
  }

  VerifiedBuffer(const VerifiedBuffer&) = delete;
  VerifiedBuffer& operator=(const VerifiedBuffer&) = delete;

  // Returns nullptr when the bytes are not such a flatbuffer. Valid as long as this object.
  const T* root() const { return root_; }

 private:
  static constexpr flatbuffers::uoffset_t kMaxDepth = 16;

  uint64_t small_[32];  // holds a copy that fits, because there are many records and most are small
  std::vector<uint64_t> large_;
  const T* root_ = nullptr;
};

}  // namespace varve::internal
