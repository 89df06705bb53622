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

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"
#include "python/src/torch_memory.h"
#include "varve/async_checkpointer.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

// A tuple of dtype, shape, strides in elements (none: dense), address and owner: what _arrays.py
// finds out of a tensor.
constexpr size_t kOwner = 4;

// The tensors of a save or a load, with what keeps their memory alive. They stay from save to save
// and take what has changed, because a training that saves each step waits for this.
class HeldTensors {
 public:
  // Takes tensors of torch, or tuples as above in their place. Tensors of torch from number
  // `num_lent` on are copied. False: FindTorchMemory does not know one of them, or it is not dense
  // and to be copied. Call again with a tuple in its place.
  bool Take(const nb::list& names, const nb::list& roles, const nb::list& values, size_t num_lent) {
    const size_t count = nb::len(names);
    if (nb::len(values) != count || nb::len(roles) != count) {
      ThrowIfError(Status::InvalidArgument("names, roles and values are of different numbers"));
    }
    LetGo();
    state_.tensors.resize(count);
    std::vector<std::pair<StateTensor*, uint64_t>> copied;  // with their bytes
    for (size_t i = 0; i < count; ++i) {
      StateTensor& tensor = state_.tensors[i];
      const auto name = nb::cast<std::string_view>(names[i]);
      if (tensor.name != name) tensor.name = name;
      tensor.role = RequireRole(nb::cast<std::string_view>(roles[i]));
      if (nb::isinstance<nb::tuple>(values[i])) {
        TakeTuple(nb::borrow<nb::tuple>(values[i]), &tensor);
        continue;
      }
      const std::optional<TorchMemory> memory = FindTorchMemory(values[i]);
      const bool is_lent = i < num_lent;
      if (!memory || (!is_lent && !memory->strides.empty())) return false;
      tensor.dtype = memory->dtype;
      tensor.shape.assign(memory->shape.begin(), memory->shape.end());
      tensor.strides.assign(memory->strides.begin(), memory->strides.end());
      tensor.data = memory->data;
      if (is_lent) {
        owners_.push_back(OwnerOfTorchMemory(values[i]));
      } else {
        copied.emplace_back(&tensor, memory->num_bytes());
      }
    }
    Copy(copied);
    return true;
  }
  // Call it when the tensors are not read any more.
  void LetGo() { std::vector<nb::object>().swap(owners_); }

  // Its tensors are those that were taken. The caller sets the rest.
  TrainingState* state() { return &state_; }

 private:
  static uint64_t Rounded(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

  void TakeTuple(const nb::tuple& values, StateTensor* tensor) {
    tensor->dtype = RequireDType(nb::cast<std::string_view>(values[0]));
    tensor->shape = nb::cast<std::vector<int64_t>>(values[1]);
    tensor->strides = nb::cast<std::vector<int64_t>>(values[2]);
    tensor->data = reinterpret_cast<void*>(nb::cast<uintptr_t>(values[3]));
    owners_.push_back(nb::borrow(values[kOwner]));
  }
  // The copies lie where those of the save before lay. So a save sees that it has the same tensors.
  void Copy(const std::vector<std::pair<StateTensor*, uint64_t>>& copied) {
    uint64_t total = 0;
    for (const auto& [tensor, bytes] : copied) total += Rounded(bytes);
    if (total > room_) {
      memory_ = std::make_unique<std::byte[]>(total);
      room_ = total;
    }
    std::byte* to = memory_.get();
    for (const auto& [tensor, bytes] : copied) {
      if (bytes > 0) std::memcpy(to, tensor->data, bytes);
      tensor->data = to;
      to += Rounded(bytes);
    }
  }

  TrainingState state_;
  std::vector<nb::object> owners_;
  std::unique_ptr<std::byte[]> memory_;  // of the copies
  uint64_t room_ = 0;
};

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
    held_.LetGo();
    is_lent_ = false;
    ThrowIfError(status);
  }

  // `fill(HeldTensors*)` takes the tensors, or returns false: then nothing happens and nullopt
  // comes back.
  template <typename Fill>
  std::optional<bool> BeginSave(uint64_t step, Fill&& fill) {
    // Nobody has waited for a save that still reads the last ones. It is not committed.
    if (is_lent_) Settle([](AsyncCheckpointer& c) { return c.RequireAwaited(); });
    guard_.Check();
    const auto lock = LockWithGil<std::unique_lock<std::mutex>>(mutex_);
    if (!fill(&held_)) return std::nullopt;
    is_lent_ = true;
    const bool is_saving = [&] {
      const nb::gil_scoped_release release;
      return ValueOrThrow(checkpointer_->BeginSave(step, *held_.state()));
    }();
    is_lent_ = is_saving;
    if (!is_saving) held_.LetGo();
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
  // Guarded by the GIL.
  HeldTensors held_;
  bool is_lent_ = false;  // a save reads them
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

// None: a value has to be a tuple (HeldTensors).
std::optional<bool> BeginSave(CheckpointerHandle* handle, uint64_t step, const nb::list& names,
                              const nb::list& roles, const nb::list& values, size_t num_lent,
                              const std::vector<std::pair<std::string, nb::bytes>>& items,
                              const TrainerProgress& progress,
                              const std::map<std::string, double>& metrics,
                              const std::vector<std::string>& tags) {
  return handle->BeginSave(step, [&](HeldTensors* held) {
    if (!held->Take(names, roles, values, num_lent)) return false;
    TrainingState* const state = held->state();
    state->items.clear();
    for (const auto& [name, value] : items) {
      const auto* const begin = static_cast<const std::byte*>(value.data());
      state->items.push_back({name, std::nullopt, {begin, begin + value.size()}});
    }
    state->trainer = progress;
    state->metrics = metrics;
    state->tags = tags;
    return true;
  });
}

// Fills the memory of tensors. What else the step has stays there. None: as above.
std::optional<uint64_t> Restore(CheckpointerHandle* handle, std::string_view step,
                                const nb::list& names, const nb::list& roles,
                                const nb::list& values) {
  HeldTensors held;
  if (!held.Take(names, roles, values, nb::len(values))) return std::nullopt;
  LoadOptions options;
  options.strictness = Strictness::kAssumeOkUnexpected;
  return handle->With([&](AsyncCheckpointer& c) {
    return ValueOrThrow(c.Restore(step, options, held.state())).id.step;
  });
}

}  // namespace

void BindCheckpointer(nb::module_& module) {
  nb::class_<RetentionPolicy>(module, "RetentionPolicy", "Which steps stay after a save.")
      .def_static("make", MakePolicy, nb::arg("keep_last"), nb::arg("keep_every"),
                  nb::arg("keep_best"), nb::arg("keep_within_seconds"), nb::arg("keep_tags"));
  nb::class_<CheckpointerHandle>(module, "Checkpointer", "Saves in the background of a training.")
      .def_prop_ro("store", [](const CheckpointerHandle& handle) { return handle.store(); })
      .def("begin_save", BeginSave, nb::arg("step"), nb::arg("names"), nb::arg("roles"),
           nb::arg("values"), nb::arg("num_lent"), nb::arg("items"), nb::arg("progress"),
           nb::arg("metrics"), nb::arg("tags"),
           nb::sig("def begin_save(self, step: int, names: list[str], roles: list[str], values: "
                   "list[typing.Any], num_lent: int, items: collections.abc.Sequence[tuple[str, "
                   "bytes]], progress: TrainerProgress, metrics: collections.abc.Mapping[str, "
                   "float], tags: collections.abc.Sequence[str]) -> bool | None"),
           "Starts a save of plain tensors of torch on the CPU. Those from number `num_lent` on "
           "are\n"
           "copied. A tuple (dtype, shape, strides, address, owner) stands for any other tensor. \n"
           "False: the step is skipped. None: a tuple is needed for one of the values.")
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
      .def("restore", Restore, nb::arg("step"), nb::arg("names"), nb::arg("roles"),
           nb::arg("values"),
           nb::sig("def restore(self, step: str, names: list[str], roles: list[str], values: "
                   "list[typing.Any]) -> int | None"),
           "Fills the memory of tensors, to go on from a step. Returns its number, or None as "
           "above.")
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
