// SPDX-License-Identifier: Apache-2.0
#include "varve/tensor.h"

#include <array>

namespace varve {
namespace {

struct DTypeEntry {
  std::string_view name;
  int bits;
};

// The entries are in the order of DType's values.
constexpr std::array<DTypeEntry, kNumDTypes> kDTypes = {{
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},      {"U16", 16},    {"I16", 16},
    {"U32", 32},    {"I32", 32}, {"U64", 64},    {"I64", 64},    {"BF16", 16},
    {"F16", 16},    {"F32", 32}, {"F64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64},
}};

bool IsDType(DType dtype) { return static_cast<size_t>(dtype) < kDTypes.size(); }

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

// Returns the bytes of the well-formed UTF-8 sequence at the start of `s`, or 0. It accepts no
// overlong forms, no surrogates, and nothing above U+10FFFF (Unicode table 3-7).
size_t Utf8SequenceBytes(std::string_view s) {
  auto byte = [&](size_t i) { return i < s.size() ? static_cast<uint8_t>(s[i]) : uint8_t{0}; };
  auto is_tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return is_tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const uint8_t low = first == 0xE0 ? 0xA0 : 0x80;
    const uint8_t high = first == 0xED ? 0x9F : 0xBF;
    return byte(1) >= low && byte(1) <= high && is_tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const uint8_t low = first == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xF4 ? 0x8F : 0xBF;
    return byte(1) >= low && byte(1) <= high && is_tail(2) && is_tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

int DTypeBits(DType dtype) { return IsDType(dtype) ? kDTypes[static_cast<size_t>(dtype)].bits : 0; }

std::string_view DTypeName(DType dtype) {
  return IsDType(dtype) ? kDTypes[static_cast<size_t>(dtype)].name : "?";
}

std::string_view TensorRoleName(TensorRole role) {
  constexpr std::array<std::string_view, kNumTensorRoles> kNames = {"other", "parameter", "buffer",
                                                                    "optimizer"};
  const auto i = static_cast<size_t>(role);
  return i < kNames.size() ? kNames[i] : "?";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

Result<int64_t> NumElements(std::span<const int64_t> shape) {
  // Negative axes are checked first, so that [-1, 0] is an error whatever the order of the axes.
  bool empty = false;
  for (const int64_t axis : shape) {
    if (axis < 0) {
      return Status::InvalidArgument("shape " + ShapeText(shape) + " has a negative axis, " +
                                     std::to_string(axis));
    }
    empty = empty || axis == 0;
  }
  if (empty) return int64_t{0};
  int64_t elements = 1;
  for (const int64_t axis : shape) {
    if (__builtin_mul_overflow(elements, axis, &elements)) {
      return Status::InvalidArgument("shape " + ShapeText(shape) +
                                     " has more than 2^63 - 1 elements");
    }
  }
  return elements;
}

Result<uint64_t> NumBytes(DType dtype, std::span<const int64_t> shape) {
  const int bits = DTypeBits(dtype);
  if (bits == 0) {
    return Status::InvalidArgument("dtype " + std::to_string(static_cast<int>(dtype)) +
                                   " is unknown, expected 0 to " + std::to_string(kNumDTypes - 1));
  }
  VARVE_ASSIGN_OR_RETURN(const int64_t elements, NumElements(shape));
  int64_t total_bits = 0;
  if (__builtin_mul_overflow(elements, int64_t{bits}, &total_bits)) {
    return Status::InvalidArgument("a tensor of dtype " + std::string(DTypeName(dtype)) +
                                   " and shape " + ShapeText(shape) + " has more than 2^60 bytes");
  }
  if (total_bits % 8 != 0) {
    return Status::InvalidArgument("shape " + ShapeText(shape) + " of dtype " +
                                   std::string(DTypeName(dtype)) + " has " +
                                   std::to_string(total_bits) + " bits, expected whole bytes");
  }
  return static_cast<uint64_t>(total_bits / 8);
}

Status ValidateName(std::string_view what, std::string_view name) {
  const std::string subject(what);
  if (name.empty()) return Status::InvalidArgument(subject + " is empty");
  if (name.size() > kMaxNameBytes) {
    return Status::InvalidArgument(subject + " has " + std::to_string(name.size()) +
                                   " bytes, expected at most " + std::to_string(kMaxNameBytes));
  }
  for (size_t i = 0; i < name.size();) {
    if (name[i] == '\0') {
      return Status::InvalidArgument(subject + " has a NUL at byte " + std::to_string(i));
    }
    const size_t bytes = Utf8SequenceBytes(name.substr(i));
    if (bytes == 0) {
      return Status::InvalidArgument(subject + " is not UTF-8 at byte " + std::to_string(i));
    }
    i += bytes;
  }
  return Status::Ok();
}

}  // namespace varve
