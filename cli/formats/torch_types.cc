// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/torch_types.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace varve::internal::formats {
namespace {

constexpr TorchType kTypes[] = {
    {"float32", "FloatStorage", DType::kF32, 4},
    {"bfloat16", "BFloat16Storage", DType::kBF16, 2},
    {"float16", "HalfStorage", DType::kF16, 2},
    {"float64", "DoubleStorage", DType::kF64, 8},
    {"int64", "LongStorage", DType::kI64, 8},
    {"int32", "IntStorage", DType::kI32, 4},
    {"int16", "ShortStorage", DType::kI16, 2},
    {"int8", "CharStorage", DType::kI8, 1},
    {"uint8", "ByteStorage", DType::kU8, 1},
    {"bool", "BoolStorage", DType::kBool, 1},
    {"complex64", "ComplexFloatStorage", DType::kC64, 8},
    {"uint16", "", DType::kU16, 2},
    {"uint32", "", DType::kU32, 4},
    {"uint64", "", DType::kU64, 8},
    {"float8_e4m3fn", "", DType::kF8E4M3, 1},
    {"float8_e5m2", "", DType::kF8E5M2, 1},
    {"float8_e8m0fnu", "", DType::kF8E8M0, 1},
    {"float4_e2m1fn_x2", "", DType::kF4, 1},
    {"complex128", "ComplexDoubleStorage", DType::kF64, 16, true},
    {"complex32", "", DType::kF16, 4, true},
    {"float8_e4m3fnuz", "", DType::kU8, 1, true},
    {"float8_e5m2fnuz", "", DType::kU8, 1, true},
};

constexpr std::string_view kGlobals[] = {
    "_codecs.encode",
    "builtins.bytearray",
    "builtins.bytes",
    "builtins.complex",
    "builtins.frozenset",
    "builtins.set",
    "collections.Counter",
    "collections.OrderedDict",
    "torch.Size",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch.device",
    "torch.storage.UntypedStorage",
};

template <typename Condition>
const TorchType* FindIf(const Condition& condition) {
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes), condition);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace

Result<std::vector<int64_t>> TorchType::ShapeOf(std::vector<int64_t> shape) const {
  const int64_t bits = DTypeBits(dtype);
  if (bits == 8 * element_bytes) return shape;
  if (bits < 8 * element_bytes && bits >= 8) {
    shape.push_back(8 * element_bytes / bits);  // the parts of a complex number
    return shape;
  }
  if (shape.empty() || __builtin_mul_overflow(shape.back(), 2, &shape.back())) {
    return Status::InvalidArgument("a tensor of " + std::string(name) +
                                   " has no axis, or too long a one");
  }
  return shape;
}

const TorchType* FindTorchType(std::string_view name) {
  return FindIf([name](const TorchType& type) { return type.name == name; });
}

const TorchType* FindTorchStorage(std::string_view name) {
  if (name.empty()) return nullptr;
  return FindIf([name](const TorchType& type) { return type.storage == name; });
}

const TorchType* TorchTypeOf(DType dtype) {
  return FindIf([dtype](const TorchType& type) { return type.dtype == dtype && !type.is_other; });
}

bool IsTorchGlobal(std::string_view name) {
  if (std::binary_search(std::begin(kGlobals), std::end(kGlobals), name)) return true;
  constexpr std::string_view kModule = "torch.";
  if (!name.starts_with(kModule)) return false;
  name.remove_prefix(kModule.size());
  return FindTorchType(name) != nullptr || FindTorchStorage(name) != nullptr;
}

}  // namespace varve::internal::formats
