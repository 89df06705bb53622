// SPDX-License-Identifier: Apache-2.0
//
// Builds small files of InfiniTrain and llm.c for tests, honest ones and liars.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/result.h"

namespace varve::internal::formats {

inline std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
std::string LittleEndian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

inline std::string CkptEntry(std::string_view name, uint8_t dtype,
                             const std::vector<int64_t>& shape, std::string_view data) {
  std::string bytes = LittleEndian(static_cast<uint32_t>(name.size())) + std::string(name);
  bytes += static_cast<char>(dtype);
  bytes += LittleEndian(static_cast<uint32_t>(shape.size()));
  for (const int64_t size : shape) bytes += LittleEndian(size);
  return bytes + LittleEndian(uint64_t{data.size()}) + std::string(data);
}

inline std::string CkptFile(uint32_t count, std::string_view entries) {
  return "CKPT" + LittleEndian(uint32_t{1}) + LittleEndian(count) + std::string(entries);
}

// Returns the 1,024 bytes of a header that starts with these integers.
inline std::string LlmcHeaderText(const std::vector<int32_t>& ints) {
  std::string bytes;
  for (const int32_t value : ints) bytes += LittleEndian(value);
  bytes.resize(1024);
  return bytes;
}

inline void SetInt(size_t index, int32_t value, std::string* file) {
  std::memcpy(file->data() + 4 * index, &value, 4);
}

inline int32_t FloatBits(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// The parser under test. Returns ok when it accepts the file.
using TryParse = std::function<Status(std::span<const std::byte>)>;

// Calls `visit` with each shorter file and its verdict. The bytes are in an allocation of just that
// size, so that the address sanitizer sees a read past the end.
inline void ForEachTruncation(const std::string& file, const TryParse& parse,
                              const std::function<void(size_t, const Status&)>& visit) {
  for (size_t size = 0; size < file.size(); ++size) {
    const std::vector<char> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    visit(size, parse(std::as_bytes(std::span(cut))));
  }
}

// Calls `visit` with the verdict on each file in which one byte is another one.
inline void ForEachFlip(const std::string& file, const TryParse& parse,
                        const std::function<void(size_t, const Status&)>& visit) {
  std::mt19937 random(34);
  std::uniform_int_distribution<uint32_t> any(1, 255);
  for (size_t at = 0; at < file.size(); ++at) {
    for (const uint32_t mask : {1u, 0x80u, 0xffu, any(random)}) {
      std::vector<char> changed(file.begin(), file.end());
      changed[at] = static_cast<char>(changed[at] ^ static_cast<char>(mask));
      visit(at, parse(std::as_bytes(std::span(changed))));
    }
  }
}

}  // namespace varve::internal::formats
