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

namespace varve::internal::formats {

// Returns kInvalidArgument with "at byte 12: " in front of the message, which says what was found
// and expected.
Status ErrorAt(uint64_t offset, std::string_view message);

// Returns the number that starts at the first byte. Precondition: there are enough bytes.
uint32_t LoadU32(std::span<const std::byte> bytes);
uint64_t LoadU64(std::span<const std::byte> bytes);

class ByteReader {
 public:
  // The bytes must outlive the reader and everything it returns. If `fetch` is set, it is called
  // for each field before the field is read.
  explicit ByteReader(std::span<const std::byte> file, FetchBytes fetch = {})
      : file_(file), fetch_(std::move(fetch)) {}

  uint64_t offset() const { return offset_; }
  uint64_t left() const { return file_.size() - offset_; }

  // kInvalidArgument when the file ends before the field does. `field` names the field in the
  // message.
  Result<uint8_t> U8(std::string_view field);
  Result<uint32_t> U32(std::string_view field);
  Result<uint64_t> U64(std::string_view field);
  Result<std::span<const std::byte>> Bytes(std::string_view field, uint64_t size);
  // As Bytes, but it does not fetch them. It is for bytes that nobody looks at now.
  Result<std::span<const std::byte>> Skip(std::string_view field, uint64_t size);

 private:
  std::span<const std::byte> file_;
  FetchBytes fetch_;
  uint64_t offset_ = 0;
};

}  // namespace varve::internal::formats
