// SPDX-License-Identifier: Apache-2.0
//
// AsyncCheckpointer in Python. The class adds what handles.h says of handles. Besides, it keeps the
// owners of the tensors alive while a save reads them.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"
#include "varve/async_checkpointer.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

class CheckpointerHandle {
 public:
  CheckpointerHandle(std::unique_ptr<AsyncCheckpointer> checkpointer, const std::string& path)
      : checkpointer_(std::move(checkpointer)),
        store_(std::make_shared<StoreHandle>(
            std::shared_ptr<Store>(std::shared_ptr<Store>(), &checkpointer_->store()), path)) {}
  CheckpointerHandle(const CheckpointerHandle&) = delete;
  CheckpointerHandle& operator=(const CheckpointerHandle&) = delete;
  ~CheckpointerHandle() {
    if (guard_.InChild()) {
      static_cast<void>(checkpointer_.release());
      return;
    }
    const nb::gil_scoped_release release;
    // Nobody knows whether the tensors have changed, so a save that reads them is not committed.
    checkpointer_->RequireAwaited().IgnoreError();
    CloseBoth().IgnoreError();
  }

  // Calls `call(AsyncCheckpointer&)` without the GIL. Calls of several threads wait for each other.
  template <typename Call>
  auto With(Call&& call) {
    guard_.Check();
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return call(*checkpointer_);
  }
  // The same, for a call after which no save reads tensors.
  template <typename Call>
  void Settle(Call&& call) {
    const Status status = With(call);
    std::vector<nb::object>().swap(owners_);
    ThrowIfError(status);
  }

  bool BeginSave(uint64_t step, const TrainingState& state, std::vector<nb::object> owners) {
    const bool is_saving =
        With([&](AsyncCheckpointer& c) { return ValueOrThrow(c.BeginSave(step, state)); });
    owners_ = is_saving ? std::move(owners) : std::vector<nb::object>();
    return is_saving;
  }
  void Close() {
    Settle([&](AsyncCheckpointer&) { return CloseBoth(); });
  }

  const std::shared_ptr<StoreHandle>& store() const { return store_; }

 private:
  // Without the GIL.
  Status CloseBoth() {
    store_->CloseWithoutGil();
    return checkpointer_->Close();
  }

  const ForkGuard guard_;
  std::mutex mutex_;
  std::unique_ptr<AsyncCheckpointer> checkpointer_;
  const std::shared_ptr<StoreHandle> store_;  // shows the store of the checkpointer
  std::vector<nb::object> owners_;            // guarded by the GIL
};

WhenBusy ParseWhenBusy(std::string_view name) {
  if (name == "wait") return WhenBusy::kWait;
  if (name == "skip") return WhenBusy::kSkip;
  throw StatusError(
      Status::InvalidArgument("when_busy \"" + std::string(name) + "\" is not wait or skip"));
}

std::unique_ptr<CheckpointerHandle> OpenCheckpointer(
    const std::string& path, const std::string& run, std::string_view on_existing,
    std::string_view when_busy, std::string_view compression, uint64_t staging_budget_bytes,
    uint64_t pipeline_budget_bytes, int num_threads, int retries, double check_staging,
    const std::optional<RetentionPolicy>& retention) {
  NoteOpen();
  CheckMayWrite();
  const CheckpointerOptions options{.run = run,
                                    .staging_budget_bytes = staging_budget_bytes,
                                    .store = {.compression = ParseCompression(compression),
                                              .pipeline_budget_bytes = pipeline_budget_bytes,
                                              .num_threads = num_threads},
                                    .on_existing = ParseOnExisting(on_existing),
                                    .when_busy = ParseWhenBusy(when_busy),
                                    .replicas = {},
                                    .retries = retries,
                                    .check_staging = check_staging,
                                    .retention = retention,
                                    .on_save = {}};
  const nb::gil_scoped_release release;
  return std::make_unique<CheckpointerHandle>(ValueOrThrow(AsyncCheckpointer::Open(path, options)),
                                              path);
}

// A tuple of name, dtype, shape, strides in elements (none: dense), address and role. It is read
// as it is: a training that saves each step waits for this.
using TensorTuple = nb::typed<nb::tuple, std::string, std::string, std::vector<int64_t>,
                              std::vector<int64_t>, uintptr_t, std::string>;
using TensorTuples = nb::typed<nb::sequence, TensorTuple>;

TrainingState MakeState(const TensorTuples& tensors,
                        const std::vector<std::pair<std::string, nb::bytes>>& items,
                        const TrainerProgress& progress,
                        const std::map<std::string, double>& metrics,
                        const std::vector<std::string>& tags) {
  TrainingState state;
  state.tensors.reserve(nb::len(tensors));
  for (const nb::handle each : tensors) {
    const auto values = nb::cast<nb::tuple>(each);
    StateTensor& tensor = state.tensors.emplace_back();
    tensor.name = nb::cast<std::string>(values[0]);
    tensor.dtype = RequireDType(nb::cast<std::string_view>(values[1]));
    tensor.shape = nb::cast<std::vector<int64_t>>(values[2]);
    tensor.strides = nb::cast<std::vector<int64_t>>(values[3]);
    tensor.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(values[4]));
    tensor.role = RequireRole(nb::cast<std::string_view>(values[5]));
  }
  for (const auto& [name, value] : items) {
    const auto* const begin = static_cast<const std::byte*>(value.data());
    state.items.push_back({name, std::nullopt, {begin, begin + value.size()}});
  }
  state.trainer = progress;
  state.metrics = metrics;
  state.tags = tags;
  return state;
}

// Fills the memory of tensors. What else the step has stays there.
uint64_t Restore(CheckpointerHandle* handle, std::string_view step, const TensorTuples& tensors) {
  TrainingState into = MakeState(tensors, {}, {}, {}, {});
  LoadOptions options;
  options.strictness = Strictness::kAssumeOkUnexpected;
  return handle->With(
      [&](AsyncCheckpointer& c) { return ValueOrThrow(c.Restore(step, options, &into)).id.step; });
}

}  // namespace

void BindCheckpointer(nb::module_& module) {
  nb::class_<RetentionPolicy>(module, "RetentionPolicy", "Which steps stay after a save.")
      .def_static("make", MakePolicy, nb::arg("keep_last"), nb::arg("keep_every"),
                  nb::arg("keep_best"), nb::arg("keep_within_seconds"), nb::arg("keep_tags"));
  nb::class_<CheckpointerHandle>(module, "Checkpointer", "Saves in the background of a training.")
      .def_prop_ro("store", [](const CheckpointerHandle& handle) { return handle.store(); })
      .def(
          "begin_save",
          [](CheckpointerHandle* handle, uint64_t step, const TensorTuples& tensors,
             const std::vector<std::pair<std::string, nb::bytes>>& items,
             const TrainerProgress& progress, const std::map<std::string, double>& metrics,
             const std::vector<std::string>& tags, std::vector<nb::object> owners) {
            return handle->BeginSave(step, MakeState(tensors, items, progress, metrics, tags),
                                     std::move(owners));
          },
          nb::arg("step"), nb::arg("tensors"), nb::arg("items"), nb::arg("progress"),
          nb::arg("metrics"), nb::arg("tags"), nb::arg("owners"),
          "Starts a save of tensors: (name, dtype, shape, strides, address, role). `owners` live\n"
          "until the save reads them no more. False: the step is skipped.")
      .def("await_staged",
           [](CheckpointerHandle* handle) {
             handle->Settle([](AsyncCheckpointer& c) { return c.AwaitStaged(); });
           })
      .def("require_awaited",
           [](CheckpointerHandle* handle) {
             handle->Settle([](AsyncCheckpointer& c) { return c.RequireAwaited(); });
           })
      .def("wait",
           [](CheckpointerHandle* handle) {
             handle->Settle([](AsyncCheckpointer& c) { return c.Wait(); });
           })
      .def("restore", Restore, nb::arg("step"), nb::arg("tensors"),
           "Fills the memory of tensors, to go on from a step. Returns its number.")
      .def("last_stats",
           [](CheckpointerHandle* handle) {
             return handle->With([](AsyncCheckpointer& c) { return c.last_stats(); });
           })
      .def("close", &CheckpointerHandle::Close);
  module.def("open_checkpointer", OpenCheckpointer, nb::arg("path"), nb::arg("run"),
             nb::arg("on_existing"), nb::arg("when_busy"), nb::arg("compression"),
             nb::arg("staging_budget_bytes"), nb::arg("pipeline_budget_bytes"),
             nb::arg("num_threads"), nb::arg("retries"), nb::arg("check_staging"),
             nb::arg("retention").none());
}

}  // namespace varve::python
