// SPDX-License-Identifier: Apache-2.0
//
// Reading a step.
#include <algorithm>
#include <utility>

#include "capi/arguments.h"
#include "capi/last_error.h"
#include "capi/objects.h"

namespace varve::internal::capi {

namespace {

class ReaderObject : public Object {
 public:
  static constexpr const char* kKind = "reader";
  const char* kind() const override { return kKind; }

  ReaderObject(std::shared_ptr<StoreObject> store, std::unique_ptr<CheckpointReader> reader)
      : info(reader->info()), store_(std::move(store)), reader_(std::move(reader)) {}

  const CheckpointReader& reader() const { return *reader_; }
  // The lists are made when they are asked for, and stay.
  Result<std::span<const TensorInfo>> Tensors() {
    const std::lock_guard lock(mutex_);
    if (!tensors_.has_value()) {
      VARVE_ASSIGN_OR_RETURN(tensors_, reader_->List());
    }
    return std::span<const TensorInfo>(*tensors_);
  }
  Result<std::span<const std::string>> Items() {
    const std::lock_guard lock(mutex_);
    if (!items_.has_value()) {
      VARVE_ASSIGN_OR_RETURN(items_, reader_->ListBytes());
    }
    return std::span<const std::string>(*items_);
  }

  const StepText info;

 private:
  const std::shared_ptr<StoreObject> store_;
  const std::unique_ptr<CheckpointReader> reader_;
  std::mutex mutex_;
  std::optional<std::vector<TensorInfo>> tensors_;  // guarded by mutex_, as the next one
  std::optional<std::vector<std::string>> items_;
};

varve_tensor_info View(const TensorInfo& tensor) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nullptr : text.c_str();
  };
  return {.struct_size = sizeof(varve_tensor_info),
          .name = tensor.name.c_str(),
          .dtype = static_cast<uint32_t>(tensor.dtype),
          .role = static_cast<uint32_t>(tensor.role),
          .num_axes = tensor.shape.size(),
          .shape = tensor.shape.data(),
          .derived_from = or_null(tensor.derived_from),
          .alias_of = or_null(tensor.alias_of),
          .num_bytes = tensor.logical_bytes};
}

template <typename T>
Result<const T*> At(std::span<const T> list, size_t index, const char* what) {
  if (index < list.size()) return &list[index];
  return Status::InvalidArgument("index is " + std::to_string(index) + ", and the step has " +
                                 std::to_string(list.size()) + " " + what);
}

Status CheckMemory(const void* out, size_t size) {
  return size == 0 ? Status::Ok() : RequirePointer("out", out);
}

}  // namespace

}  // namespace varve::internal::capi

using namespace varve::internal::capi;  // of this file alone, which defines functions of C
using varve::Status;

varve_status varve_reader_open(varve_store* store, const char* step, varve_reader** reader) {
  return Call("varve_reader_open", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("reader", reader));
    *reader = nullptr;
    VARVE_ASSIGN_OR_RETURN(auto object, Get<StoreObject>(store));
    VARVE_RETURN_IF_ERROR(RequirePointer("step", step));
    VARVE_ASSIGN_OR_RETURN(const varve::CheckpointId id, object->store->Resolve(step));
    VARVE_ASSIGN_OR_RETURN(auto opened, object->store->OpenCheckpoint(id.run, id.step));
    Give(std::make_shared<ReaderObject>(std::move(object), std::move(opened)), reader);
    return Status::Ok();
  });
}

void varve_reader_close(varve_reader* reader) {
  CallQuietly("varve_reader_close", [&] { Close<ReaderObject>(reader); });
}

varve_status varve_reader_info(varve_reader* reader, varve_step_info* info) {
  return Call("varve_reader_info", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckStruct("varve_step_info", info));
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    WriteStruct(object->info.View(), info);
    return Status::Ok();
  });
}

varve_status varve_reader_num_tensors(varve_reader* reader, size_t* num_tensors) {
  return Call("varve_reader_num_tensors", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("num_tensors", num_tensors));
    *num_tensors = 0;
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_ASSIGN_OR_RETURN(const auto tensors, object->Tensors());
    *num_tensors = tensors.size();
    return Status::Ok();
  });
}

varve_status varve_reader_tensor(varve_reader* reader, size_t index, varve_tensor_info* info) {
  return Call("varve_reader_tensor", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckStruct("varve_tensor_info", info));
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_ASSIGN_OR_RETURN(const auto tensors, object->Tensors());
    VARVE_ASSIGN_OR_RETURN(const auto* const tensor, At(tensors, index, "tensors"));
    WriteStruct(View(*tensor), info);
    return Status::Ok();
  });
}

varve_status varve_reader_find(varve_reader* reader, const char* name, varve_tensor_info* info) {
  return Call("varve_reader_find", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckStruct("varve_tensor_info", info));
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
    VARVE_RETURN_IF_ERROR(object->reader().Find(name).status());
    VARVE_ASSIGN_OR_RETURN(const auto tensors, object->Tensors());
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& tensor) { return tensor.name == name; });
    if (found == tensors.end()) {
      return Status::NotFound("tensor " + std::string(name) + " is not in the list of the step");
    }
    WriteStruct(View(*found), info);
    return Status::Ok();
  });
}

varve_status varve_reader_read(varve_reader* reader, const char* name, void* out, size_t size) {
  return Call("varve_reader_read", [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
    VARVE_RETURN_IF_ERROR(CheckMemory(out, size));
    return object->reader().Read(name, {static_cast<std::byte*>(out), size});
  });
}

varve_status varve_reader_read_slice(varve_reader* reader, const char* name, const int64_t* begins,
                                     const int64_t* ends, size_t num_axes, void* out, size_t size) {
  return Call("varve_reader_read_slice", [&]() -> Status {
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
    VARVE_RETURN_IF_ERROR(CheckMemory(out, size));
    // Asked first, so that a wrong number of axes is not read from the caller's memory.
    VARVE_ASSIGN_OR_RETURN(const varve::TensorInfo tensor, object->reader().Find(name));
    if (num_axes != tensor.shape.size()) {
      return Status::InvalidArgument("num_axes is " + std::to_string(num_axes) + ", and tensor " +
                                     name + " has " + std::to_string(tensor.shape.size()) +
                                     " axes");
    }
    if (num_axes > 0) {
      VARVE_RETURN_IF_ERROR(RequirePointer("begins", begins));
      VARVE_RETURN_IF_ERROR(RequirePointer("ends", ends));
    }
    std::vector<varve::Range> slice;
    for (size_t axis = 0; axis < num_axes; ++axis) slice.push_back({begins[axis], ends[axis]});
    return object->reader().ReadSlice(name, slice, {static_cast<std::byte*>(out), size});
  });
}

varve_status varve_reader_num_items(varve_reader* reader, size_t* num_items) {
  return Call("varve_reader_num_items", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("num_items", num_items));
    *num_items = 0;
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_ASSIGN_OR_RETURN(const auto items, object->Items());
    *num_items = items.size();
    return Status::Ok();
  });
}

varve_status varve_reader_item_name(varve_reader* reader, size_t index, const char** name) {
  return Call("varve_reader_item_name", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
    *name = nullptr;
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_ASSIGN_OR_RETURN(const auto items, object->Items());
    VARVE_ASSIGN_OR_RETURN(const auto* const item, At(items, index, "items"));
    *name = item->c_str();
    return Status::Ok();
  });
}

varve_status varve_reader_read_item(varve_reader* reader, const char* name, void* out,
                                    size_t capacity, size_t* size) {
  return Call("varve_reader_read_item", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("size", size));
    *size = 0;
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
    VARVE_RETURN_IF_ERROR(CheckMemory(out, capacity));
    VARVE_ASSIGN_OR_RETURN(const auto bytes, object->reader().ReadBytes(name));
    *size = bytes.size();
    if (bytes.size() > capacity) {
      return Status::InvalidArgument("item " + std::string(name) + " has " +
                                     std::to_string(bytes.size()) + " bytes, and capacity is " +
                                     std::to_string(capacity));
    }
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(out));
    return Status::Ok();
  });
}

varve_status varve_reader_progress(varve_reader* reader, varve_progress* progress) {
  return Call("varve_reader_progress", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckStruct("varve_progress", progress));
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ReaderObject>(reader));
    VARVE_ASSIGN_OR_RETURN(const auto found, object->reader().ReadTrainerProgress());
    if (!found.has_value()) return Status::NotFound("the save of the step set no progress");
    WriteStruct(ViewProgress(*found), progress);
    return Status::Ok();
  });
}
