// SPDX-License-Identifier: Apache-2.0
//
// Saving a step.
#include <utility>

#include "capi/arguments.h"
#include "capi/last_error.h"
#include "capi/objects.h"

namespace varve::internal::capi {

namespace {

static_assert(static_cast<int>(OnExisting::kError) == VARVE_EXISTING_ERROR);
static_assert(static_cast<int>(OnExisting::kReplace) == VARVE_EXISTING_REPLACE);
static_assert(static_cast<int>(OnExisting::kFork) == VARVE_EXISTING_FORK);

struct WriterObject : Object {
  static constexpr const char* kKind = "writer";
  const char* kind() const override { return kKind; }
  std::shared_ptr<StoreObject> store;
  std::unique_ptr<CheckpointWriter> writer;
};

Result<SaveOptions> ReadSaveOptions(const varve_save_options* options) {
  varve_save_options given;
  VARVE_RETURN_IF_ERROR(ReadOptions("varve_save_options", options, &given));
  VARVE_RETURN_IF_ERROR(CheckConstant("on_existing", given.on_existing, VARVE_EXISTING_FORK));
  VARVE_RETURN_IF_ERROR(CheckConstant("num_threads", given.num_threads, INT32_MAX));
  SaveOptions read;
  if (given.run != nullptr) read.run = given.run;
  read.on_existing = static_cast<OnExisting>(given.on_existing);
  read.num_threads = static_cast<int>(given.num_threads);
  return read;
}

// Runs `change` on the writer of a handle.
template <typename Change>
Status ChangeWriter(varve_writer* writer, const Change& change) {
  VARVE_ASSIGN_OR_RETURN(const auto object, Exclusive<WriterObject>::Get(writer));
  return change(object->writer.get());
}

}  // namespace

}  // namespace varve::internal::capi

using namespace varve::internal::capi;  // of this file alone, which defines functions of C
using varve::CheckpointWriter;
using varve::Status;

varve_status varve_writer_open(varve_store* store, uint64_t step, const varve_save_options* options,
                               varve_writer** writer) {
  return Call("varve_writer_open", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("writer", writer));
    *writer = nullptr;
    auto made = std::make_shared<WriterObject>();
    VARVE_ASSIGN_OR_RETURN(made->store, Get<StoreObject>(store));
    VARVE_ASSIGN_OR_RETURN(const varve::SaveOptions read, ReadSaveOptions(options));
    VARVE_ASSIGN_OR_RETURN(made->writer, made->store->store->Begin(step, read));
    Give(std::move(made), writer);
    return Status::Ok();
  });
}

varve_status varve_writer_put_tensor(varve_writer* writer, const varve_tensor* tensor) {
  return Call("varve_writer_put_tensor", [&] {
    return ChangeWriter(writer, [&](CheckpointWriter* opened) -> Status {
      VARVE_ASSIGN_OR_RETURN(const TensorArgument read, ReadTensor(tensor));
      varve::TensorView view = read.spec.View();
      view.data = read.data;
      view.strides = read.strides;
      return opened->Put(view);
    });
  });
}

varve_status varve_writer_put_item(varve_writer* writer, const char* name, const void* bytes,
                                   size_t size) {
  return Call("varve_writer_put_item", [&] {
    return ChangeWriter(writer, [&](CheckpointWriter* opened) -> Status {
      VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
      if (size > 0) VARVE_RETURN_IF_ERROR(RequirePointer("bytes", bytes));
      return opened->PutBytes(name, {static_cast<const std::byte*>(bytes), size});
    });
  });
}

varve_status varve_writer_set_progress(varve_writer* writer, const varve_progress* progress) {
  return Call("varve_writer_set_progress", [&] {
    return ChangeWriter(writer, [&](CheckpointWriter* opened) -> Status {
      varve::TrainerProgress read;
      VARVE_RETURN_IF_ERROR(ReadProgress(progress, &read));
      return opened->SetTrainerProgress(read);
    });
  });
}

varve_status varve_writer_set_metric(varve_writer* writer, const char* name, double value) {
  return Call("varve_writer_set_metric", [&] {
    return ChangeWriter(writer, [&](CheckpointWriter* opened) -> Status {
      VARVE_RETURN_IF_ERROR(RequirePointer("name", name));
      return opened->SetMetric(name, value);
    });
  });
}

varve_status varve_writer_add_tag(varve_writer* writer, const char* tag) {
  return Call("varve_writer_add_tag", [&] {
    return ChangeWriter(writer, [&](CheckpointWriter* opened) -> Status {
      VARVE_RETURN_IF_ERROR(RequirePointer("tag", tag));
      return opened->AddTag(tag);
    });
  });
}

varve_status varve_writer_commit(varve_writer* writer, varve_save_report* report) {
  return Call("varve_writer_commit", [&] {
    return ChangeWriter(writer, [&](CheckpointWriter* opened) -> Status {
      VARVE_RETURN_IF_ERROR(CheckOptional("varve_save_report", report));
      VARVE_ASSIGN_OR_RETURN(const varve::SaveReport done, opened->Commit());
      WriteOptional(varve_save_report{.struct_size = sizeof(varve_save_report),
                                      .num_tensors = done.num_tensors,
                                      .logical_bytes = done.logical_bytes,
                                      .new_bytes = done.new_bytes,
                                      .stored_bytes = done.stored_bytes,
                                      .seconds = done.elapsed.count()},
                    report);
      return Status::Ok();
    });
  });
}

void varve_writer_close(varve_writer* writer) {
  CallQuietly("varve_writer_close", [&] { Close<WriterObject>(writer); });
}
