// SPDX-License-Identifier: Apache-2.0
#include "python/src/torch_memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "python/src/bindings.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

// DLPackExchangeAPI of DLPack 1.x. Only one of its functions is called.
struct ExchangeApi {
  uint32_t major;
  uint32_t minor;
  void* older;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* out);
  void* current_work_stream;
};
constexpr uint32_t kMajor = 1;
// Devices of DLPack.
constexpr int32_t kCpu = 1;
constexpr int32_t kCuda = 2;

struct KnownType {
  PyTypeObject* type = nullptr;
  const ExchangeApi* api = nullptr;
};
// torch.Tensor and torch.nn.Parameter. They live as long as the process. Guarded by the GIL.
std::array<KnownType, 2> known_types;

const ExchangeApi* FindApi(nb::handle tensor) {
  for (const KnownType& known : known_types) {
    if (known.type == Py_TYPE(tensor.ptr())) return known.api;
  }
  return nullptr;
}

std::optional<DType> ToDType(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return std::nullopt;
  switch (static_cast<Code>(dtype.code)) {
    case Code::Bool:
      return DType::kBool;
    case Code::UInt:
      if (dtype.bits == 8) return DType::kU8;
      if (dtype.bits == 16) return DType::kU16;
      if (dtype.bits == 32) return DType::kU32;
      if (dtype.bits == 64) return DType::kU64;
      return std::nullopt;
    case Code::Int:
      if (dtype.bits == 8) return DType::kI8;
      if (dtype.bits == 16) return DType::kI16;
      if (dtype.bits == 32) return DType::kI32;
      if (dtype.bits == 64) return DType::kI64;
      return std::nullopt;
    case Code::Float:
      if (dtype.bits == 16) return DType::kF16;
      if (dtype.bits == 32) return DType::kF32;
      if (dtype.bits == 64) return DType::kF64;
      return std::nullopt;
    case Code::Bfloat:
      return dtype.bits == 16 ? std::optional(DType::kBF16) : std::nullopt;
    case Code::Float8_E4M3FN:
      return DType::kF8E4M3;
    case Code::Float8_E5M2:
      return DType::kF8E5M2;
    case Code::Float8_E8M0FNU:
      return DType::kF8E8M0;
    default:  // complex tensors may be conjugated, and F4 comes in pairs
      return std::nullopt;
  }
}

bool AreDense(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  int64_t expected = 1;
  bool are_dense = true;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] > 1 && strides[i] != expected) are_dense = false;
    expected *= shape[i];
  }
  return are_dense;
}

// Returns true if the elements are the negated ones of the memory, as of the imaginary part of a
// conjugated tensor.
bool IsNegated(nb::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("is_neg");
  const auto answer = nb::steal(PyObject_CallMethodObjArgs(tensor.ptr(), name, nullptr));
  if (!answer.is_valid()) PyErr_Clear();
  return answer.ptr() != Py_False;
}

void Append(const void* data, size_t bytes, std::string* text) {
  text->append(static_cast<const char*>(data), bytes);
}

// Device, address, dtype, shape and strides of tensors, as bytes that are equal where these are.
// None: FindTorchMemory does not know one of them.
nb::object LayoutsOf(const nb::list& tensors) {
  std::string text;
  for (const nb::handle tensor : tensors) {
    const std::optional<TorchMemory> memory = FindTorchMemory(tensor, TorchPlace::kCpuOrGpu);
    if (!memory) return nb::none();
    const uint64_t numbers[] = {
        static_cast<uint64_t>(memory->device), reinterpret_cast<uintptr_t>(memory->data),
        static_cast<uint64_t>(memory->dtype), memory->shape.size(), memory->strides.size()};
    Append(numbers, sizeof numbers, &text);
    Append(memory->shape.data(), memory->shape.size_bytes(), &text);
    Append(memory->strides.data(), memory->strides.size_bytes(), &text);
  }
  return nb::bytes(text.data(), text.size());
}

}  // namespace

uint64_t TorchMemory::num_bytes() const {
  uint64_t bytes = static_cast<uint64_t>(DTypeBits(dtype)) / 8;
  for (const int64_t length : shape) bytes *= static_cast<uint64_t>(length);
  return bytes;
}

bool AddTorchType(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
  const auto* const api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api->major != kMajor || api->tensor_from_object == nullptr) return false;
  auto* const added = reinterpret_cast<PyTypeObject*>(type.ptr());
  for (KnownType& known : known_types) {
    if (known.type != nullptr && known.type != added) continue;
    if (known.type == nullptr) Py_INCREF(type.ptr());
    known = {added, api};
    return true;
  }
  return false;
}

std::optional<TorchMemory> FindTorchMemory(nb::handle tensor, TorchPlace place) {
  const ExchangeApi* const api = FindApi(tensor);
  if (api == nullptr) return std::nullopt;
  nb::dlpack::dltensor found;
  if (api->tensor_from_object(tensor.ptr(), &found) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const std::optional<DType> dtype = ToDType(found.dtype);
  const bool is_on_cpu = found.device.device_type == kCpu;
  const bool is_there =
      is_on_cpu || (place == TorchPlace::kCpuOrGpu && found.device.device_type == kCuda);
  if (!dtype || !is_there || IsNegated(tensor)) return std::nullopt;
  const auto num_axes = static_cast<size_t>(found.ndim);
  TorchMemory memory{.device = is_on_cpu ? kHost : found.device.device_id,
                     .dtype = *dtype,
                     .shape = {found.shape, num_axes},
                     .strides = {},
                     .data = static_cast<std::byte*>(found.data) + found.byte_offset};
  if (found.strides == nullptr) return memory;
  const std::span<const int64_t> strides(found.strides, num_axes);
  if (!AreDense(memory.shape, strides)) memory.strides = strides;
  return memory;
}

nb::object OwnerOfTorchMemory(nb::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("untyped_storage");
  auto owner = nb::steal(PyObject_CallMethodObjArgs(tensor.ptr(), name, nullptr));
  if (!owner.is_valid()) throw nb::python_error();
  return owner;
}

void BindTorchMemory(nb::module_& module) {
  module.def(
      "add_torch_type", &AddTorchType, nb::arg("type"),
      nb::sig("def add_torch_type(type: object) -> bool"),
      "Lets calls that take tensors of torch know this type. False: it has no exchange API.");
  module.def(
      "layouts_of", LayoutsOf, nb::arg("tensors"),
      nb::sig("def layouts_of(tensors: list[typing.Any]) -> bytes | None"),
      "Bytes that are equal where devices, addresses, dtypes, shapes and strides of tensors are.\n"
      "None: not all are plain tensors of torch on the CPU or a GPU of NVIDIA.");
}

}  // namespace varve::python
