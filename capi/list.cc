// SPDX-License-Identifier: Apache-2.0
//
// Lists of runs and of steps.
#include <utility>

#include "capi/arguments.h"
#include "capi/last_error.h"
#include "capi/objects.h"

namespace varve::internal::capi {

namespace {

struct ListObject : Object {
  static constexpr const char* kKind = "list";
  const char* kind() const override { return kKind; }
  size_t size() const { return holds_steps ? steps.size() : runs.size(); }

  bool holds_steps = false;
  std::vector<RunInfo> runs;
  std::deque<StepText> steps;
};

// Finds a list of what the caller asks for, which has this index.
Result<std::shared_ptr<ListObject>> GetAt(const varve_list* list, size_t index, bool steps) {
  VARVE_ASSIGN_OR_RETURN(auto object, Get<ListObject>(list));
  if (object->holds_steps != steps) {
    return Status::InvalidArgument(steps ? "the list holds runs, expected steps"
                                         : "the list holds steps, expected runs");
  }
  if (index < object->size()) return object;
  return Status::InvalidArgument("index is " + std::to_string(index) + ", and the list has " +
                                 std::to_string(object->size()) + " entries");
}

}  // namespace

}  // namespace varve::internal::capi

using namespace varve::internal::capi;  // of this file alone, which defines functions of C
using varve::Status;

varve_status varve_list_runs(varve_store* store, varve_list** list) {
  return Call("varve_list_runs", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("list", list));
    *list = nullptr;
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<StoreObject>(store));
    auto made = std::make_shared<ListObject>();
    VARVE_ASSIGN_OR_RETURN(made->runs, object->store->ListRuns());
    Give(std::move(made), list);
    return Status::Ok();
  });
}

varve_status varve_list_steps(varve_store* store, const char* run, varve_list** list) {
  return Call("varve_list_steps", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("list", list));
    *list = nullptr;
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<StoreObject>(store));
    VARVE_RETURN_IF_ERROR(RequirePointer("run", run));
    VARVE_ASSIGN_OR_RETURN(auto steps, object->store->ListCheckpoints(run));
    auto made = std::make_shared<ListObject>();
    made->holds_steps = true;
    for (varve::CheckpointInfo& info : steps) made->steps.emplace_back(std::move(info));
    Give(std::move(made), list);
    return Status::Ok();
  });
}

varve_status varve_list_size(varve_list* list, size_t* size) {
  return Call("varve_list_size", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(RequirePointer("size", size));
    *size = 0;
    VARVE_ASSIGN_OR_RETURN(const auto object, Get<ListObject>(list));
    *size = object->size();
    return Status::Ok();
  });
}

varve_status varve_list_run(varve_list* list, size_t index, varve_run_info* info) {
  return Call("varve_list_run", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckStruct("varve_run_info", info));
    VARVE_ASSIGN_OR_RETURN(const auto object, GetAt(list, index, /*steps=*/false));
    const varve::RunInfo& run = object->runs[index];
    const bool is_fork = run.forked_from.has_value();
    WriteStruct(varve_run_info{.struct_size = sizeof(varve_run_info),
                               .name = run.name.c_str(),
                               .num_steps = run.num_steps,
                               .forked_from_run = is_fork ? run.forked_from->run.c_str() : nullptr,
                               .forked_from_step = is_fork ? run.forked_from->step : 0},
                info);
    return Status::Ok();
  });
}

varve_status varve_list_step(varve_list* list, size_t index, varve_step_info* info) {
  return Call("varve_list_step", [&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckStruct("varve_step_info", info));
    VARVE_ASSIGN_OR_RETURN(const auto object, GetAt(list, index, /*steps=*/true));
    WriteStruct(object->steps[index].View(), info);
    return Status::Ok();
  });
}

void varve_list_close(varve_list* list) {
  CallQuietly("varve_list_close", [&] { Close<ListObject>(list); });
}
