// SPDX-License-Identifier: Apache-2.0
#include "cli/formats/torch_tensors.h"

#include <algorithm>
#include <span>
#include <utility>

#include "cli/formats/pickle_values.h"

namespace varve::internal::formats {
namespace {

constexpr std::string_view kParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kTensor1 = "torch._utils._rebuild_tensor";
constexpr std::string_view kTensor2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kTensor3 = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

// The bytes that a number of elements takes, or an error that names what has them.
Result<uint64_t> ByteCount(const PickleValue& value, std::string_view what, int64_t elements,
                           int64_t element_bytes) {
  int64_t bytes = 0;
  if (elements < 0 || __builtin_mul_overflow(elements, element_bytes, &bytes)) {
    return PickleError(value, std::string(what) + " is " + std::to_string(elements) +
                                  " elements of " + std::to_string(element_bytes) +
                                  " bytes, which is negative or too large");
  }
  return static_cast<uint64_t>(bytes);
}

class TensorsReader {
 public:
  TensorsReader(const Pickle& pickle, PickleId id) : pickle_(pickle), id_(id) {}

  Result<TorchTensor> Read() {
    // A parameter is a tensor with a flag. It may not be in another parameter.
    if (AsCall(pickle_, id_).function == kParameter) {
      VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id_, 3, 3));
      id_ = AsCall(pickle_, id_).args[0];
    }
    const PickleCall call = AsCall(pickle_, id_);
    args_ = call.args;
    if (call.function == kTensor1) {
      VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id_, 4, 4));
    } else if (call.function == kTensor2) {
      VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id_, 6, 7));
    } else if (call.function == kTensor3) {
      VARVE_RETURN_IF_ERROR(ExpectArgs(pickle_, id_, 7, 8));
      VARVE_RETURN_IF_ERROR(ReadType(args_[6]));
    } else {
      return PickleError(pickle_[id_], "there is no tensor here");
    }
    VARVE_RETURN_IF_ERROR(ReadStorage(args_[0]));
    const size_t metadata = call.function == kTensor3 ? 7 : 6;
    if (metadata < args_.size()) VARVE_RETURN_IF_ERROR(CheckMetadata(args_[metadata]));
    VARVE_RETURN_IF_ERROR(ReadPlace());
    return std::move(tensor_);
  }

 private:
  Status ReadType(PickleId id) {
    const PickleValue& value = pickle_[id];
    if (value.kind == PickleKind::kGlobal && value.text.starts_with(kTorchPrefix)) {
      tensor_.type = FindTorchType(value.text.substr(kTorchPrefix.size()));
    }
    if (tensor_.type != nullptr) return Status::Ok();
    return PickleError(value, "the dtype of a tensor is none that varve has");
  }

  // ("storage", class, key, device, number of elements)
  Status ReadStorage(PickleId id) {
    const PickleValue& value = pickle_[id];
    if (value.kind != PickleKind::kPersistent) {
      return PickleError(value, "a tensor has " + std::string(PickleKindName(value.kind)) +
                                    ", expected a storage");
    }
    VARVE_ASSIGN_OR_RETURN(const auto parts, PickleItems(pickle_, value.args, "a storage"));
    if (parts.size() != 5) {
      return PickleError(value,
                         "a storage has " + std::to_string(parts.size()) + " parts, expected 5");
    }
    VARVE_ASSIGN_OR_RETURN(const std::string_view tag, PickleString(pickle_, parts[0], "its tag"));
    if (tag != "storage") {
      return PickleError(value, "an object outside of the pickle is a \"" + std::string(tag) +
                                    "\", expected a \"storage\"");
    }
    VARVE_RETURN_IF_ERROR(ReadStorageClass(parts[1]));
    VARVE_ASSIGN_OR_RETURN(tensor_.storage,
                           PickleString(pickle_, parts[2], "the key of a storage"));
    VARVE_ASSIGN_OR_RETURN(tensor_.device,
                           PickleString(pickle_, parts[3], "the device of a storage"));
    VARVE_ASSIGN_OR_RETURN(const int64_t count,
                           PickleInt(pickle_, parts[4], "the size of a storage"));
    VARVE_ASSIGN_OR_RETURN(tensor_.storage_bytes,
                           ByteCount(value, "the size of a storage", count, unit_));
    return Status::Ok();
  }

  Status ReadStorageClass(PickleId id) {
    const PickleValue& value = pickle_[id];
    if (value.kind == PickleKind::kGlobal && value.text == kUntyped) {
      unit_ = 1;
      if (tensor_.type == nullptr) tensor_.type = FindTorchType("uint8");
      return Status::Ok();
    }
    const TorchType* type = nullptr;
    if (value.kind == PickleKind::kGlobal && value.text.starts_with(kTorchPrefix)) {
      type = FindTorchStorage(value.text.substr(kTorchPrefix.size()));
    }
    if (type == nullptr) {
      return PickleError(value, "the class of a storage is none whose elements varve has");
    }
    unit_ = type->element_bytes;
    if (tensor_.type == nullptr) tensor_.type = type;
    return Status::Ok();
  }

  // Flags of views that torch evaluates when it reads an element.
  Status CheckMetadata(PickleId id) {
    const PickleValue& value = pickle_[id];
    if (value.kind == PickleKind::kNone) return Status::Ok();
    if (value.kind != PickleKind::kDict) return PickleError(value, "the flags are no dict");
    for (size_t i = 0; i < value.items.size(); i += 2) {
      const PickleValue& flag = pickle_[value.items[i + 1]];
      if (flag.kind == PickleKind::kBool && flag.integer == 0) continue;
      const PickleValue& key = pickle_[value.items[i]];
      return PickleError(value, "the tensor has the flag \"" +
                                    std::string(key.kind == PickleKind::kString ? key.text : "?") +
                                    "\": save tensor.resolve_conj().resolve_neg() instead");
    }
    return Status::Ok();
  }

  Status ReadPlace() {
    const PickleValue& value = pickle_[id_];
    VARVE_ASSIGN_OR_RETURN(const int64_t offset,
                           PickleInt(pickle_, args_[1], "the offset of a tensor"));
    VARVE_ASSIGN_OR_RETURN(tensor_.shape,
                           PickleLengths(pickle_, args_[2], "the shape of a tensor"));
    VARVE_ASSIGN_OR_RETURN(tensor_.strides,
                           PickleLengths(pickle_, args_[3], "the strides of a tensor"));
    const int64_t element_bytes = tensor_.type->element_bytes;
    VARVE_ASSIGN_OR_RETURN(tensor_.begin,
                           ByteCount(value, "the offset of a tensor", offset, element_bytes));
    if (tensor_.strides.size() != tensor_.shape.size()) {
      return PickleError(value, "a tensor has " + std::to_string(tensor_.strides.size()) +
                                    " strides, expected " + std::to_string(tensor_.shape.size()));
    }
    const Result<int64_t> count = NumElements(tensor_.shape);
    if (!count.ok()) return PickleError(value, count.status().message());
    VARVE_ASSIGN_OR_RETURN(tensor_.num_bytes,
                           ByteCount(value, "the size of a tensor", *count, element_bytes));
    tensor_.end = tensor_.begin;
    if (*count == 0) return Status::Ok();
    int64_t span = 1;
    for (size_t i = 0; i < tensor_.shape.size(); ++i) {
      int64_t reach = 0;
      if (__builtin_mul_overflow(tensor_.shape[i] - 1, tensor_.strides[i], &reach) ||
          __builtin_add_overflow(span, reach, &span)) {
        return PickleError(value, "the strides of a tensor are too large");
      }
    }
    VARVE_ASSIGN_OR_RETURN(const uint64_t bytes,
                           ByteCount(value, "the span of a tensor", span, element_bytes));
    if (tensor_.begin > tensor_.storage_bytes || bytes > tensor_.storage_bytes - tensor_.begin) {
      return PickleError(value, "a tensor needs " + std::to_string(bytes) + " bytes from byte " +
                                    std::to_string(tensor_.begin) + " on of storage \"" +
                                    std::string(tensor_.storage) + "\", which has " +
                                    std::to_string(tensor_.storage_bytes));
    }
    tensor_.end = tensor_.begin + bytes;
    return Status::Ok();
  }

  const Pickle& pickle_;
  PickleId id_;
  std::span<const PickleId> args_;
  TorchTensor tensor_;
  int64_t unit_ = 1;  // the bytes of an element of the storage
};

// Stride and length of each axis of more than one element, by rising stride.
std::vector<std::pair<int64_t, int64_t>> AxesOf(const TorchTensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> axes;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] > 1) axes.emplace_back(tensor.strides[i], tensor.shape[i]);
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

}  // namespace

bool TorchTensor::IsContiguous() const {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

bool TorchTensor::IsDense() const {
  int64_t expected = 1;
  for (const auto& [stride, length] : AxesOf(*this)) {
    if (stride != expected) return false;
    expected *= length;
  }
  return true;
}

bool TorchTensor::HasOverlap() const {
  int64_t last = 0;
  for (const auto& [stride, length] : AxesOf(*this)) {
    if (stride <= last) return true;
    last += stride * (length - 1);
  }
  return false;
}

bool IsTorchTensor(const Pickle& pickle, PickleId id) {
  const std::string_view function = AsCall(pickle, id).function;
  return function == kParameter || function == kTensor1 || function == kTensor2 ||
         function == kTensor3;
}

Result<TorchTensor> ReadTorchTensor(const Pickle& pickle, PickleId id) {
  return TensorsReader(pickle, id).Read();
}

}  // namespace varve::internal::formats
