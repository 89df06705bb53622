// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>

#include "store/chunk_source.h"
#include "store/gather.h"
#include "trainer_hooks/item_name.h"
#include "trainer_hooks/make_checkpointer.h"

namespace varve {

Status ValidatePlace(const StateTensor& tensor, const DeviceTensorSource* devices) {
  if (tensor.device == kHost) return Status::Ok();
  const std::string what = "tensor " + tensor.name + " of device " + std::to_string(tensor.device);
  if (devices == nullptr) {
    return Status::InvalidArgument(what + ": no devices were given (varve/cuda.h)");
  }
  if (IsDense(tensor.shape, tensor.strides)) return Status::Ok();
  return Status::InvalidArgument(what + " has strides, expected it to be dense");
}

Status ValidateState(const TrainingState& state, const DeviceTensorSource* devices) {
  std::set<std::string_view> names;
  for (const StateTensor& tensor : state.tensors) {
    VARVE_RETURN_IF_ERROR(ValidatePlace(tensor, devices));
    VARVE_RETURN_IF_ERROR(ValidateView({.name = tensor.name,
                                        .dtype = tensor.dtype,
                                        .shape = tensor.shape,
                                        .data = tensor.data,
                                        .strides = tensor.strides,
                                        .layout = tensor.layout ? &*tensor.layout : nullptr},
                                       /*has_data=*/true));
    if (!names.insert(tensor.name).second) {
      return Status::InvalidArgument("tensor " + tensor.name + " is in the state twice");
    }
  }
  std::set<std::string> items;
  for (const StateItem& item : state.items) {
    VARVE_ASSIGN_OR_RETURN(std::string name, EncodeItemName({item.name, item.rank}));
    VARVE_RETURN_IF_ERROR(ValidateItem(name, item.value));
    if (!items.insert(name).second) {
      return Status::InvalidArgument("item " + name + " is in the state twice");
    }
  }
  for (const auto& [name, value] : state.metrics) {
    VARVE_RETURN_IF_ERROR(ValidateName("metric name", name));
  }
  for (const std::string& tag : state.tags) VARVE_RETURN_IF_ERROR(ValidateTag(tag));
  return Status::Ok();
}

}  // namespace varve
