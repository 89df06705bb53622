// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "cli/formats/strict_json.h"

namespace varve::internal::formats {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

std::string TensorText(std::string_view name) { return "tensor \"" + std::string(name) + "\""; }

uint64_t LoadLittleEndian64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// Recognises other formats, and says what to do. Empty = none of them. No valid header length looks
// like one.
std::string_view KnownAs(std::span<const std::byte> first) {
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  if (text.starts_with("PK\x03\x04")) {
    return "a zip archive, as torch.save (.pt, .pth, .bin) and np.savez make, no safetensors file: "
           "import it with --format torch or --format npz";
  }
  if (text.starts_with("\x93NUMPY")) {
    return "a .npy file, no safetensors file: import it with --format npz";
  }
  if (text[0] == '\x80' && text[1] >= 2 && text[1] <= 5) {
    return "a pickle of Python's, as torch.save made before PyTorch 1.6 (.pt, .pth), no "
           "safetensors "
           "file: write it anew with torch.save(torch.load(FILE, weights_only=True), NEW), and "
           "import that with --format torch";
  }
  return {};
}

// Returns the JSON text after checking its stated length.
Result<std::string_view> HeaderText(std::span<const std::byte> file, const FetchBytes& fetch) {
  if (file.size() < kLengthBytes) {
    return Status::InvalidArgument("the file has " + std::to_string(file.size()) +
                                   " bytes, too few for the 8 of the header length");
  }
  if (fetch) VARVE_RETURN_IF_ERROR(fetch(file.first(kLengthBytes)));
  if (const std::string_view other = KnownAs(file.first(kLengthBytes)); !other.empty()) {
    return Status::InvalidArgument("this is " + std::string(other));
  }
  const uint64_t length = LoadLittleEndian64(file);
  if (length > kMaxSafetensorsHeaderBytes) {
    return Status::InvalidArgument("the header says that it is " + std::to_string(length) +
                                   " bytes long; the limit is " +
                                   std::to_string(kMaxSafetensorsHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    return Status::InvalidArgument("the header says that it is " + std::to_string(length) +
                                   " bytes long; the file has only " +
                                   std::to_string(file.size() - kLengthBytes) + " bytes after it");
  }
  if (fetch) VARVE_RETURN_IF_ERROR(fetch(file.subspan(kLengthBytes, length)));
  const auto* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{') {
    return Status::InvalidArgument("the header does not start with '{'");
  }
  return std::string_view(text, length);
}

Result<SafetensorsMetadata> ParseMetadata(const json& object) {
  if (!object.is_object()) return Status::InvalidArgument("__metadata__ is no object");
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) {
      return Status::InvalidArgument("__metadata__ holds \"" + key +
                                     "\", whose value is no string");
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

// An array of integers from 0 to the largest int64.
Result<std::vector<int64_t>> ParseIntegers(std::string_view what, const json& array) {
  if (!array.is_array()) return Status::InvalidArgument(std::string(what) + " is no array");
  std::vector<int64_t> integers;
  integers.reserve(array.size());
  for (const json& value : array) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
      const std::string found = value.is_number() ? value.dump() : value.type_name();
      return Status::InvalidArgument(std::string(what) + " holds " + found +
                                     ", which is no integer from 0 to 2^63 - 1");
    }
    integers.push_back(value.get<int64_t>());
  }
  return integers;
}

Status CheckFields(const json& object) {
  if (!object.is_object()) return Status::InvalidArgument("its entry is no object");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!object.contains(field)) {
      return Status::InvalidArgument("\"" + std::string(field) + "\" is missing");
    }
  }
  return Status::Ok();
}

Result<DType> ParseDTypeField(const json& field) {
  if (!field.is_string()) return Status::InvalidArgument("dtype is no string");
  const std::string& name = field.get_ref<const std::string&>();
  const std::optional<DType> dtype = ParseDType(name);
  if (!dtype) return Status::InvalidArgument("unknown dtype \"" + name + "\"");
  return *dtype;
}

Status ParseOffsets(const json& field, SafetensorsTensor* tensor) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, ParseIntegers("data_offsets", field));
  if (offsets.size() != 2) {
    return Status::InvalidArgument("data_offsets holds " + std::to_string(offsets.size()) +
                                   " numbers instead of 2");
  }
  if (offsets[0] > offsets[1]) {
    return Status::InvalidArgument("data_offsets start at " + std::to_string(offsets[0]) +
                                   " and end before, at " + std::to_string(offsets[1]));
  }
  tensor->begin = static_cast<uint64_t>(offsets[0]);
  tensor->end = static_cast<uint64_t>(offsets[1]);
  return Status::Ok();
}

Status CheckSize(const SafetensorsTensor& tensor) {
  VARVE_ASSIGN_OR_RETURN(const uint64_t needed, NumBytes(tensor.dtype, tensor.shape));
  if (tensor.end - tensor.begin == needed) return Status::Ok();
  return Status::InvalidArgument("its dtype and shape need " + std::to_string(needed) +
                                 " bytes; data_offsets give it " +
                                 std::to_string(tensor.end - tensor.begin));
}

Result<SafetensorsTensor> ParseTensor(const std::string& name, const json& object) {
  SafetensorsTensor tensor;
  tensor.name = name;
  VARVE_RETURN_IF_ERROR(ValidateName("name", name));
  VARVE_RETURN_IF_ERROR(CheckFields(object));
  VARVE_ASSIGN_OR_RETURN(tensor.dtype, ParseDTypeField(object["dtype"]));
  VARVE_ASSIGN_OR_RETURN(tensor.shape, ParseIntegers("shape", object["shape"]));
  VARVE_RETURN_IF_ERROR(ParseOffsets(object["data_offsets"], &tensor));
  VARVE_RETURN_IF_ERROR(CheckSize(tensor));
  return tensor;
}

// `tensors` are sorted by start, then end. They must follow each other exactly and fill
// `data_bytes`.
Status CheckCoverage(std::span<const SafetensorsTensor> tensors, uint64_t data_bytes) {
  uint64_t expected = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin != expected) {
      return Status::InvalidArgument(
          TensorText(tensor.name) + " starts at byte " + std::to_string(tensor.begin) +
          " of the data, " +
          (tensor.begin < expected ? "inside the tensor before it" : "after a hole") +
          ", which ends at " + std::to_string(expected));
    }
    expected = tensor.end;
  }
  if (expected == data_bytes) return Status::Ok();
  return Status::InvalidArgument(
      (expected > data_bytes ? "the file is cut short: the tensors need "
                             : "the file goes on after the last tensor: the tensors need ") +
      std::to_string(expected) + " bytes of data and it has " + std::to_string(data_bytes));
}

// Sorts types from wide to narrow, and breaks ties as the `safetensors` package does.
int SafetensorsRank(DType dtype) {
  static constexpr std::array kOrder = {DType::kU64,    DType::kI64,    DType::kF64, DType::kC64,
                                        DType::kF32,    DType::kU32,    DType::kI32, DType::kBF16,
                                        DType::kF16,    DType::kU16,    DType::kI16, DType::kF8E8M0,
                                        DType::kF8E4M3, DType::kF8E5M2, DType::kI8,  DType::kU8,
                                        DType::kF6E3M2, DType::kF6E2M3, DType::kF4,  DType::kBool};
  static_assert(kOrder.size() == kNumDTypes);
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), dtype) - kOrder.begin());
}

void AppendTensor(const TensorInfo& tensor, uint64_t begin, std::string* text) {
  *text += json(tensor.name).dump();
  *text += ":{\"dtype\":\"" + std::string(DTypeName(tensor.dtype)) + "\",\"shape\":";
  *text += json(tensor.shape).dump();
  *text += ",\"data_offsets\":[" + std::to_string(begin) + ',' +
           std::to_string(begin + tensor.logical_bytes) + "]}";
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file,
                                           const FetchBytes& fetch) {
  VARVE_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, fetch));
  Result<json> root = ParseStrictJson(text);
  if (!root.ok()) return root.status().WithContext("header");
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + text.size();
  for (const auto& [name, value] : root->items()) {
    if (name == kMetadataKey) {
      VARVE_ASSIGN_OR_RETURN(header.metadata, ParseMetadata(value));
      continue;
    }
    Result<SafetensorsTensor> tensor = ParseTensor(name, value);
    if (!tensor.ok()) return tensor.status().WithContext(TensorText(name));
    header.tensors.push_back(*std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  VARVE_RETURN_IF_ERROR(CheckCoverage(header.tensors, file.size() - header.data_begin));
  return header;
}

void SortForSafetensors(std::vector<TensorInfo>* tensors) {
  std::sort(tensors->begin(), tensors->end(), [](const TensorInfo& a, const TensorInfo& b) {
    const int rank_a = SafetensorsRank(a.dtype);
    const int rank_b = SafetensorsRank(b.dtype);
    return std::tie(rank_a, a.name) < std::tie(rank_b, b.name);
  });
}

Result<std::string> BuildSafetensorsHeader(std::span<const TensorInfo> tensors,
                                           const SafetensorsMetadata& metadata) {
  std::string text(kLengthBytes, '\0');
  text += '{';
  if (!metadata.empty()) text += "\"__metadata__\":" + json(metadata).dump() + ',';
  uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == kMetadataKey) {
      return Status::InvalidArgument("the format cannot hold a tensor named \"__metadata__\"");
    }
    AppendTensor(tensor, offset, &text);
    text += ',';
    offset += tensor.logical_bytes;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size() - kLengthBytes;
  if (length > kMaxSafetensorsHeaderBytes) {
    return Status::InvalidArgument("the header would be " + std::to_string(length) +
                                   " bytes long; the format allows " +
                                   std::to_string(kMaxSafetensorsHeaderBytes));
  }
  for (size_t i = 0; i < kLengthBytes; ++i) text[i] = static_cast<char>(length >> (8 * i));
  return text;
}

}  // namespace varve::internal::formats
