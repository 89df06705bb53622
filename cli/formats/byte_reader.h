// SPDX-License-Identifier: Apache-2.0
//
// Reads the little-endian fields of a file of unknown origin, one after the other, and never past
// its end. Errors name the offset in the file. Thread rule: one thread.
//
//   ByteReader reader(file.bytes());
//   VARVE_ASSIGN_OR_RETURN(const uint32_t length, reader.U32("name length"));
//   VARVE_ASSIGN_OR_RETURN(const auto name, reader.Bytes("name", length));
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cli/formats/input_file.h"
#include "varve/result.h"

namespace varve::formats {

// kInvalidArgument: "at byte 12: " and what was found there, and expected.
Status ErrorAt(uint64_t offset, std::string_view message);

// The number that begins with the first byte. Precondition: there are as many bytes.
uint32_t LoadU32(std::span<const std::byte> bytes);
uint64_t LoadU64(std::span<const std::byte> bytes);

// The bytes as characters.
std::string_view AsText(std::span<const std::byte> bytes);

class ByteReader {
 public:
  // The bytes must outlive the reader and what it returns.
  // With `fetch`, it is called for each field before that is read.
  explicit ByteReader(std::span<const std::byte> file, FetchBytes fetch = {})
      : file_(file), fetch_(std::move(fetch)) {}

  uint64_t offset() const { return offset_; }
  uint64_t left() const { return file_.size() - offset_; }

  // kInvalidArgument when the file ends before the field does; `field` names it in the message.
  Result<uint8_t> U8(std::string_view field);
  Result<uint32_t> U32(std::string_view field);
  Result<uint64_t> U64(std::string_view field);
  Result<std::span<const std::byte>> Bytes(std::string_view field, uint64_t size);
  // As Bytes, for what nobody looks at now: it is not fetched.
  Result<std::span<const std::byte>> Skip(std::string_view field, uint64_t size);

 private:
  std::span<const std::byte> file_;
  FetchBytes fetch_;
  uint64_t offset_ = 0;
};

}  // namespace varve::formats
