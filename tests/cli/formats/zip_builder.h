// SPDX-License-Identifier: Apache-2.0
//
// Builds zip archives for tests, honest ones and, with a hand on their records, liars.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/tensor_bytes.h"

namespace varve::internal::formats {

inline std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// A raw deflate stream of one block that is not compressed. At most 65,535 bytes.
inline std::string Deflated(std::string_view text) {
  return "\x01" + Little(text.size(), 2) + Little(~text.size(), 2) + std::string(text);
}

// What an entry says of itself. A record may be changed before it is written.
struct ZipPart {
  std::string name;
  std::string contents{};
  bool deflate = false;
  uint16_t flags = 0;
  std::string extra{};  // in both headers
};

inline uint32_t CrcOf(std::string_view text) {
  return Crc32(0, std::as_bytes(std::span(text.data(), text.size())));
}

class ZipBuilder {
 public:
  ZipBuilder& Add(const ZipPart& part) {
    const std::string data = part.deflate ? Deflated(part.contents) : part.contents;
    const std::string shared =
        Little(20, 2) + Little(part.flags, 2) + Little(part.deflate ? 8 : 0, 2) + Little(0, 4) +
        Little(CrcOf(part.contents), 4) + Little(data.size(), 4) + Little(part.contents.size(), 4) +
        Little(part.name.size(), 2) + Little(part.extra.size(), 2);
    directory_ += Little(0x02014b50, 4) + Little(20, 2) + shared + Little(0, 2) + Little(0, 2) +
                  Little(0, 2) + Little(0, 4) + Little(body_.size(), 4) + part.name + part.extra;
    body_ += Little(0x04034b50, 4) + shared + part.name + part.extra + data;
    ++count_;
    return *this;
  }

  std::string& body() { return body_; }
  std::string& directory() { return directory_; }

  std::string Build(bool zip64 = false) const {
    std::string file = body_ + directory_;
    if (zip64) {
      file += Little(0x06064b50, 4) + Little(44, 8) + Little(45, 2) + Little(45, 2) + Little(0, 4) +
              Little(0, 4) + Little(count_, 8) + Little(count_, 8) + Little(directory_.size(), 8) +
              Little(body_.size(), 8);
      file += Little(0x07064b50, 4) + Little(0, 4) + Little(body_.size() + directory_.size(), 8) +
              Little(1, 4);
    }
    const uint64_t count = zip64 ? 0xffff : count_;
    return file + Little(0x06054b50, 4) + Little(0, 4) + Little(count, 2) + Little(count, 2) +
           Little(zip64 ? 0xffffffff : directory_.size(), 4) +
           Little(zip64 ? 0xffffffff : body_.size(), 4) + Little(0, 2);
  }

 private:
  std::string body_;
  std::string directory_;
  uint64_t count_ = 0;
};

}  // namespace varve::internal::formats
