// SPDX-License-Identifier: Apache-2.0
//
// Builds safetensors files for tests, honest ones and liars: header text and data are taken as
// given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace varve::internal::formats {

inline std::string LittleEndian64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// A file whose header length tells the truth.
inline std::string SafetensorsText(std::string_view header, std::string_view data) {
  return LittleEndian64(header.size()) + std::string(header) + std::string(data);
}

// One U8 vector named `name` that holds `data`.
inline std::string OneTensorFile(std::string_view name, std::string_view data) {
  const std::string size = std::to_string(data.size());
  return SafetensorsText("{\"" + std::string(name) + "\":{\"dtype\":\"U8\",\"shape\":[" + size +
                             "],\"data_offsets\":[0," + size + "]}}",
                         data);
}

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace varve::internal::formats
