// SPDX-License-Identifier: Apache-2.0
#include "trainer_hooks/state/validate_state.h"

#include <set>
#include <string>

#include "store/save/validate_view.h"
#include "store/shards/strides.h"
#include "trainer_hooks/state/item_name.h"
#include "trainer_hooks/state/state_shards.h"
#include "varve/checkpoint.h"

namespace varve::internal {

Status ValidatePlace(const StateTensor& tensor, const DeviceTensorSource* devices) {
  if (tensor.device == kHost) return Status::Ok();
  const std::string what = "tensor " + tensor.name + " of device " + std::to_string(tensor.device);
  if (devices == nullptr) {
    return Status::InvalidArgument(what + ": no devices were given (varve/cuda.h)");
  }
  if (IsDense(tensor.shape, tensor.strides)) return Status::Ok();
  return Status::InvalidArgument(what + " has strides, expected it to be dense");
}

namespace {

// Collects everything that is wrong with a state, so that it can be mended at once.
class Faults {
 public:
  void Add(const Status& status) {
    constexpr size_t kShown = 20;
    if (status.ok()) return;
    if (++count_ <= kShown) message_ += (message_.empty() ? "" : "\n") + status.message();
  }
  Status status() const {
    if (count_ == 0) return Status::Ok();
    if (count_ == 1) return Status::InvalidArgument(message_);
    return Status::InvalidArgument("the state has " + std::to_string(count_) + " faults:\n" +
                                   message_);
  }

 private:
  size_t count_ = 0;
  std::string message_;
};

Status ValidateTensor(const StateTensor& tensor, const DeviceTensorSource* devices) {
  VARVE_RETURN_IF_ERROR(ValidatePlace(tensor, devices));
  TensorView view = tensor.View();
  view.data = tensor.data;
  view.strides = tensor.strides;
  return ValidateView(view, /*has_data=*/true);
}

Status ValidateStateItem(const StateItem& item, std::set<std::string>* names) {
  VARVE_ASSIGN_OR_RETURN(std::string name, EncodeItemName({item.name, item.rank}));
  VARVE_RETURN_IF_ERROR(ValidateItem(name, item.value));
  if (names->insert(name).second) return Status::Ok();
  return Status::InvalidArgument("item " + name + " is in the state twice");
}

}  // namespace

Status ValidateState(const TrainingState& state, const DeviceTensorSource* devices,
                     bool are_tensors_known) {
  Faults faults;
  if (!are_tensors_known) {
    for (const StateTensor& tensor : state.tensors) faults.Add(ValidateTensor(tensor, devices));
    for (const std::string& fault : FindShardNameFaults(state.tensors)) {
      faults.Add(Status::InvalidArgument(fault));
    }
  }
  std::set<std::string> items;
  for (const StateItem& item : state.items) faults.Add(ValidateStateItem(item, &items));
  for (const auto& [name, value] : state.metrics) faults.Add(ValidateName("metric name", name));
  for (const std::string& tag : state.tags) faults.Add(ValidateTag(tag));
  return faults.status();
}

}  // namespace varve::internal
