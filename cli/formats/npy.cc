// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/npy.h"

namespace varve::internal::formats {
namespace {

constexpr size_t kAlignment = 64;  // NumPy pads the header so that the data can be mapped

// Returns null for types that NumPy lacks.
const char* ExactDescr(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "|b1";
    case DType::kU8:
      return "|u1";
    case DType::kI8:
      return "|i1";
    case DType::kU16:
      return "<u2";
    case DType::kI16:
      return "<i2";
    case DType::kU32:
      return "<u4";
    case DType::kI32:
      return "<i4";
    case DType::kU64:
      return "<u8";
    case DType::kI64:
      return "<i8";
    case DType::kF16:
      return "<f2";
    case DType::kF32:
      return "<f4";
    case DType::kF64:
      return "<f8";
    case DType::kC64:
      return "<c8";
    default:
      return nullptr;
  }
}

// A Python tuple: "()", "(3,)", "(3, 4)".
std::string PythonTuple(std::span<const int64_t> values) {
  std::string text = "(";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ' ';
    text += std::to_string(values[i]);
    if (i + 1 < values.size() || i == 0) text += ',';
  }
  return text + ")";
}

}  // namespace

NpyType NpyTypeOf(DType dtype, std::span<const int64_t> shape) {
  NpyType type{.descr = "", .shape = {shape.begin(), shape.end()}, .exact = true};
  if (const char* descr = ExactDescr(dtype)) {
    type.descr = descr;
    return type;
  }
  type.exact = false;
  type.descr = dtype == DType::kBF16 ? "<u2" : "|u1";
  if (DTypeBits(dtype) < 8) type.shape = {static_cast<int64_t>(NumBytes(dtype, shape).value())};
  return type;
}

std::string BuildNpyHeader(const NpyType& type) {
  const std::string dictionary = "{'descr': '" + type.descr +
                                 "', 'fortran_order': False, 'shape': " + PythonTuple(type.shape) +
                                 ", }";
  // The header has six bytes of magic, two of version, and two or four of length. One newline ends
  // the dictionary.
  const bool is_long = dictionary.size() + kAlignment > UINT16_MAX;
  const size_t fixed = is_long ? 12 : 10;
  const size_t unpadded = fixed + dictionary.size() + 1;
  const size_t total = (unpadded + kAlignment - 1) / kAlignment * kAlignment;
  std::string header = std::string("\x93NUMPY") + (is_long ? '\x02' : '\x01') + '\0';
  for (size_t i = 0; i < fixed - 8; ++i) {
    header += static_cast<char>((total - fixed) >> (8 * i));
  }
  header += dictionary;
  header.append(total - unpadded, ' ');
  return header + '\n';
}

}  // namespace varve::internal::formats
