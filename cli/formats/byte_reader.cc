// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/byte_reader.h"

#include "base/coding.h"

namespace varve::internal::formats {

Status ErrorAt(uint64_t offset, std::string_view message) {
  return Status::InvalidArgument("at byte " + std::to_string(offset) + ": " + std::string(message));
}

uint32_t LoadU32(std::span<const std::byte> bytes) { return LoadLittle<uint32_t>(bytes.data()); }
uint64_t LoadU64(std::span<const std::byte> bytes) { return LoadLittle<uint64_t>(bytes.data()); }

Result<std::span<const std::byte>> ByteReader::Bytes(std::string_view field, uint64_t size) {
  VARVE_ASSIGN_OR_RETURN(const auto bytes, Skip(field, size));
  if (fetch_) VARVE_RETURN_IF_ERROR(fetch_(bytes));
  return bytes;
}

Result<std::span<const std::byte>> ByteReader::Skip(std::string_view field, uint64_t size) {
  if (size > left()) {
    return ErrorAt(offset_, std::string(field) + " needs " + std::to_string(size) +
                                " bytes; the file has " + std::to_string(left()) + " more");
  }
  const std::span<const std::byte> bytes = file_.subspan(offset_, size);
  offset_ += size;
  return bytes;
}

Result<uint8_t> ByteReader::U8(std::string_view field) {
  VARVE_ASSIGN_OR_RETURN(const auto bytes, Bytes(field, 1));
  return static_cast<uint8_t>(bytes[0]);
}

Result<uint32_t> ByteReader::U32(std::string_view field) {
  VARVE_ASSIGN_OR_RETURN(const auto bytes, Bytes(field, 4));
  return LoadU32(bytes);
}

Result<uint64_t> ByteReader::U64(std::string_view field) {
  VARVE_ASSIGN_OR_RETURN(const auto bytes, Bytes(field, 8));
  return LoadU64(bytes);
}

}  // namespace varve::internal::formats
