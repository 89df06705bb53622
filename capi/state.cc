// SPDX-License-Identifier: Apache-2.0
//
// The state of a training, as its hooks see it.
#include <cstring>
#include <utility>

#include "capi/arguments.h"
#include "capi/last_error.h"
#include "capi/objects.h"

namespace varve::internal::capi {

namespace {

// Memory of the caller, all of which is used, or as much as `*size` says.
class MemoryVariable : public ItemVariable {
 public:
  explicit MemoryVariable(const varve_item& item)
      : data_(static_cast<std::byte*>(item.data)), capacity_(item.capacity), size_(item.size) {}

  Result<std::vector<std::byte>> Read() const override {
    const size_t size = size_ != nullptr ? *size_ : capacity_;
    if (size > capacity_) {
      return Status::InvalidArgument("*size is " + std::to_string(size) + ", and capacity is " +
                                     std::to_string(capacity_));
    }
    return std::vector<std::byte>(data_, data_ + size);
  }
  Status Check(std::span<const std::byte> bytes) const override {
    const bool fits = size_ != nullptr ? bytes.size() <= capacity_ : bytes.size() == capacity_;
    if (fits) return Status::Ok();
    return Status::InvalidArgument("has " + std::to_string(bytes.size()) + " bytes, expected " +
                                   (size_ != nullptr ? "at most " : "") +
                                   std::to_string(capacity_));
  }
  void Set(std::span<const std::byte> bytes) override {
    if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
    if (size_ != nullptr) *size_ = bytes.size();
  }

 private:
  std::byte* const data_;
  const size_t capacity_;
  size_t* const size_;
};

// Runs `change` on the state of a handle.
template <typename Change>
Status ChangeState(varve_state* state, const Change& change) {
  VARVE_ASSIGN_OR_RETURN(const auto object, Exclusive<StateObject>::Get(state));
  return change(&object->state);
}

}  // namespace

}  // namespace varve::internal::capi

using namespace varve::internal::capi;  // of this file alone, which defines functions of C
using varve::Status;
using varve::TrainingState;

varve_status varve_state_create(varve_state** state) {
  return Call("varve_state_create", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("state", state));
    *state = nullptr;
    Give(std::make_shared<StateObject>(), state);
    return Status::Ok();
  });
}

void varve_state_close(varve_state* state) {
  CallQuietly("varve_state_close", [&] { Close<StateObject>(state); });
}

varve_status varve_state_add_tensor(varve_state* state, const varve_tensor* tensor) {
  return Call("varve_state_add_tensor", [&] {
    return ChangeState(state, [&](TrainingState* into) -> Status {
      VARVE_ASSIGN_OR_RETURN(TensorArgument read, ReadTensor(tensor));
      varve::StateTensor added{std::move(read.spec), read.data};
      added.strides = std::move(read.strides);
      into->tensors.push_back(std::move(added));
      return Status::Ok();
    });
  });
}

varve_status varve_state_add_item(varve_state* state, const varve_item* item) {
  return Call("varve_state_add_item", [&] {
    return ChangeState(state, [&](TrainingState* into) -> Status {
      varve_item given;
      VARVE_RETURN_IF_ERROR(ReadStruct("varve_item", item, &given));
      VARVE_RETURN_IF_ERROR(RequirePointer("name of the item", given.name));
      if (given.capacity > 0) VARVE_RETURN_IF_ERROR(RequirePointer("data of the item", given.data));
      into->items.push_back(
          {.name = given.name, .variable = std::make_shared<MemoryVariable>(given)});
      return Status::Ok();
    });
  });
}

varve_status varve_state_set_progress(varve_state* state, const varve_progress* progress) {
  return Call("varve_state_set_progress", [&] {
    return ChangeState(state,
                       [&](TrainingState* into) { return ReadProgress(progress, &into->trainer); });
  });
}

varve_status varve_state_get_progress(varve_state* state, varve_progress* progress) {
  return Call("varve_state_get_progress", [&] {
    return ChangeState(state, [&](TrainingState* from) -> Status {
      VARVE_RETURN_IF_ERROR(CheckStruct("varve_progress", progress));
      WriteStruct(ViewProgress(from->trainer), progress);
      return Status::Ok();
    });
  });
}

varve_status varve_state_set_metric(varve_state* state, const char* name, double value) {
  return Call("varve_state_set_metric", [&] {
    return ChangeState(state, [&](TrainingState* into) -> Status {
      VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
      VARVE_RETURN_IF_ERROR(varve::ValidateName("metric name", name));
      into->metrics[name] = value;
      return Status::Ok();
    });
  });
}

varve_status varve_state_add_tag(varve_state* state, const char* tag) {
  return Call("varve_state_add_tag", [&] {
    return ChangeState(state, [&](TrainingState* into) -> Status {
      VARVE_RETURN_IF_ERROR(RequirePointer("tag", tag));
      VARVE_RETURN_IF_ERROR(varve::ValidateTag(tag));
      into->tags.emplace_back(tag);
      return Status::Ok();
    });
  });
}
