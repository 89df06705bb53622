// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/infinitrain_ckpt.h"

#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/coding.h"
#include "base/util.h"
#include "cli/formats/byte_reader.h"

namespace varve::internal::formats {
namespace {

constexpr uint32_t kMagic = 0x54504B43;  // "CKPT"
constexpr uint32_t kVersion = 1;

// InfiniTrain numbers its types as varve does, and has the types up to FP64.
constexpr DType kLastDType = DType::kF64;

Status Unexpected(uint64_t offset, std::string_view field, uint64_t found,
                  std::string_view expected) {
  return ErrorAt(offset, std::string(field) + " is " + std::to_string(found) + "; expected " +
                             std::string(expected));
}

Result<uint32_t> ReadHeader(ByteReader* reader) {
  VARVE_ASSIGN_OR_RETURN(const uint32_t magic, reader->U32("the magic number"));
  if (magic != kMagic) {
    return Unexpected(0, "the magic number", magic, std::to_string(kMagic) + " (\"CKPT\")");
  }
  VARVE_ASSIGN_OR_RETURN(const uint32_t version, reader->U32("the version"));
  if (version != kVersion) return Unexpected(4, "the version", version, std::to_string(kVersion));
  return reader->U32("the tensor count");
}

Result<std::string> ReadName(ByteReader* reader) {
  const uint64_t begin = reader->offset();
  VARVE_ASSIGN_OR_RETURN(const uint32_t length, reader->U32("the name length"));
  if (length == 0 || length > kMaxNameBytes) {
    return Unexpected(begin, "the name length", length, "1 to " + std::to_string(kMaxNameBytes));
  }
  VARVE_ASSIGN_OR_RETURN(const auto bytes, reader->Bytes("the name", length));
  std::string name(AsString(bytes));
  const Status valid = ValidateName("the name", name);
  if (!valid.ok()) return ErrorAt(begin + 4, valid.message());
  return name;
}

Result<DType> ReadDType(ByteReader* reader) {
  const uint64_t begin = reader->offset();
  VARVE_ASSIGN_OR_RETURN(const uint8_t code, reader->U8("the dtype"));
  if (code <= static_cast<uint8_t>(kLastDType)) return static_cast<DType>(code);
  return Unexpected(begin, "the dtype", code,
                    "0 to " + std::to_string(static_cast<int>(kLastDType)));
}

Result<std::vector<int64_t>> ReadShape(ByteReader* reader) {
  const uint64_t begin = reader->offset();
  VARVE_ASSIGN_OR_RETURN(const uint32_t ndim, reader->U32("ndim"));
  if (ndim > reader->left() / 8) {
    return Unexpected(
        begin, "ndim", ndim,
        "at most " + std::to_string(reader->left() / 8) + ", for which the file has bytes left");
  }
  std::vector<int64_t> shape(ndim);
  for (int64_t& size : shape) {
    const uint64_t offset = reader->offset();
    VARVE_ASSIGN_OR_RETURN(const uint64_t value, reader->U64("a dim"));
    if (value > uint64_t{INT64_MAX}) return Unexpected(offset, "a dim", value, "0 to 2^63 - 1");
    size = static_cast<int64_t>(value);
  }
  return shape;
}

Result<std::span<const std::byte>> ReadData(const FileTensor& tensor, ByteReader* reader) {
  const uint64_t begin = reader->offset();
  VARVE_ASSIGN_OR_RETURN(const uint64_t size, reader->U64("the byte count"));
  const Result<uint64_t> needed = NumBytes(tensor.dtype, tensor.shape);
  if (!needed.ok()) return ErrorAt(begin, needed.status().message());
  if (size != *needed) {
    return Unexpected(begin, "the byte count", size,
                      std::to_string(*needed) + ", which dtype and dims need");
  }
  return reader->Skip("the data", size);
}

Status ReadRest(ByteReader* reader, FileTensor* tensor) {
  VARVE_ASSIGN_OR_RETURN(tensor->dtype, ReadDType(reader));
  VARVE_ASSIGN_OR_RETURN(tensor->shape, ReadShape(reader));
  VARVE_ASSIGN_OR_RETURN(tensor->data, ReadData(*tensor, reader));
  return Status::Ok();
}

}  // namespace

Result<std::vector<FileTensor>> ParseCkpt(std::span<const std::byte> file,
                                          const FetchBytes& fetch) {
  ByteReader reader(file, fetch);
  VARVE_ASSIGN_OR_RETURN(const uint32_t count, ReadHeader(&reader));
  std::vector<FileTensor> tensors;  // grows as they are found: the count may lie
  std::unordered_set<std::string> names;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t begin = reader.offset();
    FileTensor tensor;
    Result<std::string> name = ReadName(&reader);
    if (!name.ok()) {
      return name.status().WithContext("tensor " + std::to_string(i + 1) + " of " +
                                       std::to_string(count));
    }
    tensor.name = *std::move(name);
    const std::string quoted = "tensor \"" + tensor.name + "\"";
    if (!names.insert(tensor.name).second) return ErrorAt(begin, quoted + " comes twice");
    const Status rest = ReadRest(&reader, &tensor);
    if (!rest.ok()) return rest.WithContext(quoted);
    tensors.push_back(std::move(tensor));
  }
  if (reader.left() == 0) return tensors;
  return ErrorAt(reader.offset(), "the file goes on for " + std::to_string(reader.left()) +
                                      " bytes after the last of " + std::to_string(count) +
                                      " tensors");
}

std::string BuildCkptHeader(uint32_t num_tensors) {
  std::string bytes;
  for (const uint32_t value : {kMagic, kVersion, num_tensors}) AppendLittle(value, &bytes);
  return bytes;
}

Result<std::string> BuildCkptEntry(const TensorInfo& tensor) {
  if (tensor.dtype > kLastDType) {
    return Status::FailedPrecondition("tensor \"" + tensor.name + "\": a .ckpt file cannot hold " +
                                      std::string(DTypeName(tensor.dtype)));
  }
  std::string bytes;
  AppendLittle(static_cast<uint32_t>(tensor.name.size()), &bytes);
  bytes += tensor.name;
  bytes += static_cast<char>(tensor.dtype);
  AppendLittle(static_cast<uint32_t>(tensor.shape.size()), &bytes);
  for (const int64_t size : tensor.shape) AppendLittle(size, &bytes);
  AppendLittle(tensor.logical_bytes, &bytes);
  return bytes;
}

}  // namespace varve::internal::formats
