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

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/callbacks.h"
#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/handles.h"
#include "python/src/interruptible.h"
#include "python/src/torch_memory.h"
#include "varve/async_checkpointer.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

// A tuple of dtype, shape, strides in elements (none: dense), address, owner and device: what
// varve.torch finds out of a tensor.
constexpr size_t kOwner = 4;
constexpr size_t kDevice = 5;

// The tensors of a save or a load, with what keeps their memory alive. They stay from save to save
// and take what has changed, because a training that saves each step waits for this.
class HeldTensors {
 public:
  // Takes tensors of torch, or tuples as above in their place. Tensors of torch from number
  // `num_lent` on are copied. `devices` are those whose tensors may be lent. False: FindTorchMemory
  // does not know one of them, it is not dense and to be copied, or it is on a device and not dense
  // or to be copied. Call again with a tuple in its place.
  bool Take(const nb::list& names, const nb::list& roles, const nb::list& values, size_t num_lent,
            const std::vector<int>& devices) {
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
      const std::optional<TorchMemory> memory = FindTorchMemory(values[i], TorchPlace::kCpuOrGpu);
      const bool is_lent = i < num_lent;
      if (!memory || (!is_lent && !memory->strides.empty())) return false;
      if (memory->device != kHost) {
        const bool is_used = std::ranges::count(devices, memory->device) > 0;
        if (!is_used || !is_lent || !memory->strides.empty()) return false;
      }
      tensor.dtype = memory->dtype;
      tensor.shape.assign(memory->shape.begin(), memory->shape.end());
      tensor.strides.assign(memory->strides.begin(), memory->strides.end());
      tensor.data = memory->data;
      tensor.device = memory->device;
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
    tensor->device = nb::cast<int>(values[kDevice]);
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
  // `devices` is what the checkpointer got as its source, or null.
  CheckpointerHandle(std::unique_ptr<AsyncCheckpointer> checkpointer,
                     std::shared_ptr<Devices> devices, const std::string& path)
      : devices_(std::move(devices)),
        checkpointer_(std::move(checkpointer)),
        store_(std::make_shared<StoreHandle>(
            std::shared_ptr<Store>(std::shared_ptr<Store>(), &checkpointer_->store()), path)) {}
  CheckpointerHandle(const CheckpointerHandle&) = delete;
  CheckpointerHandle& operator=(const CheckpointerHandle&) = delete;
  ~CheckpointerHandle() {
    if (guard_.InChild()) {
      static_cast<void>(checkpointer_.release());
      new std::shared_ptr<Devices>(std::move(devices_));  // never destroyed
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
    RefuseCallback();
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return call(*checkpointer_);
  }
  // The same for a call that only looks, which waits for no other call. The thread that pushes may
  // look while close waits for it.
  template <typename Call>
  auto Look(Call&& call) const {
    guard_.Check();
    const nb::gil_scoped_release release;
    return call(std::as_const(*checkpointer_));
  }
  // The same as With, for a call after which no save reads tensors.
  template <typename Call>
  void Settle(Call&& call) {
    guard_.Check();
    const Streams streams = is_lent_ ? CurrentStreams() : Streams();
    const Status status = With([&](AsyncCheckpointer& c) {
      const Status followed = streams.empty() ? Status::Ok() : devices_->Follow(streams);
      const Status called = call(c);
      const Status released = streams.empty() ? Status::Ok() : devices_->Release(streams);
      if (!called.ok()) return called;
      return followed.ok() ? released : followed;
    });
    held_.LetGo();
    is_lent_ = false;
    ThrowIfError(status);
  }

  // Names the GPUs whose tensors the calls below will be given. `current_stream(device)` returns
  // torch's current stream there, as a number.
  void UseDevices(const std::vector<int>& devices, nb::object current_stream) {
    guard_.Check();
    if (devices_ == nullptr) {
      ThrowIfError(Status::Unavailable("this package of varve was built without CUDA"));
    }
    Settle([](AsyncCheckpointer& c) { return c.Wait(); });
    {
      const nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      ThrowIfError(devices_->Use(devices));
    }
    current_stream_ = std::move(current_stream);
  }
  const std::vector<int>& used_devices() const {
    static const std::vector<int> none;
    return devices_ == nullptr ? none : devices_->used();
  }

  // `fill(HeldTensors*)` takes the tensors, or returns false: then nothing happens and nullopt
  // comes back.
  template <typename Fill>
  std::optional<bool> BeginSave(uint64_t step, Fill&& fill) {
    // Nobody has waited for a save that still reads the last ones. It is not committed.
    if (is_lent_) Settle([](AsyncCheckpointer& c) { return c.RequireAwaited(); });
    guard_.Check();
    RefuseCallback();
    const auto lock = LockWithGil<std::unique_lock<std::mutex>>(mutex_);
    if (!fill(&held_)) return std::nullopt;
    const Streams streams = CurrentStreams();
    is_lent_ = true;
    const bool is_saving = [&] {
      const nb::gil_scoped_release release;
      if (!streams.empty()) ThrowIfError(devices_->Follow(streams));
      return ValueOrThrow(checkpointer_->BeginSave(step, *held_.state()));
    }();
    is_lent_ = is_saving;
    if (!is_saving) held_.LetGo();
    return is_saving;
  }
  // Fills tensors. The work that the trainer's streams have comes first.
  LoadReport Restore(std::string_view step, const LoadOptions& options, TrainingState* into) {
    guard_.Check();
    const Streams streams = CurrentStreams();
    return With([&](AsyncCheckpointer& c) {
      if (!streams.empty()) ThrowIfError(devices_->Follow(streams));
      return ValueOrThrow(c.Restore(step, options, into));
    });
  }
  // After Ctrl-C it is closed, too, and the last push did not get to its end.
  void Close() {
    std::exception_ptr raised;
    Settle([&](AsyncCheckpointer&) {
      Status status;
      try {
        Interruptible([&] { status = CloseBoth(); });
      } catch (...) {
        raised = std::current_exception();
      }
      return raised == nullptr ? status : Status::Ok();
    });
    if (raised != nullptr) std::rethrow_exception(raised);
  }

  const std::shared_ptr<StoreHandle>& store() const { return store_; }

 private:
  using Streams = std::vector<uintptr_t>;

  // A call that waits for the thread it is on would wait for ever.
  static void RefuseCallback() {
    if (!IsInCallback()) return;
    ThrowIfError(Status::FailedPrecondition(
        "a thread of varve called the checkpointer, in a log handler or in what Python freed "
        "there: "
        "only last_push and last_save may be called there. Call from the thread of the training"));
  }

  // Needs the GIL.
  Streams CurrentStreams() const {
    Streams streams;
    for (const int device : used_devices()) {
      streams.push_back(nb::cast<uintptr_t>(current_stream_(device)));
    }
    return streams;
  }
  // Without the GIL.
  Status CloseBoth() {
    store_->CloseWithoutGil();
    return checkpointer_->Close();
  }

  const ForkGuard guard_;
  std::mutex mutex_;
  std::shared_ptr<Devices> devices_;  // null: all tensors are on the CPU
  std::unique_ptr<AsyncCheckpointer> checkpointer_;
  const std::shared_ptr<StoreHandle> store_;  // shows the store of the checkpointer
  // Guarded by the GIL.
  nb::object current_stream_;  // of torch
  HeldTensors held_;
  bool is_lent_ = false;  // a save reads them
};

WhenBusy ParseWhenBusy(std::string_view name) {
  if (name == "wait") return WhenBusy::kWait;
  if (name == "skip") return WhenBusy::kSkip;
  throw StatusError(
      Status::InvalidArgument("when_busy \"" + std::string(name) + "\" is not wait or skip"));
}

// `on_push(stats)` is called from a thread of varve. An exception of it goes to
// sys.unraisablehook, as the training goes on.
std::optional<RemoteOptions> WithCallback(std::optional<RemoteOptions> remote,
                                          const nb::object& on_push) {
  if (!remote.has_value()) return remote;
  remote->on_push = [shared = ShareWithoutGil(on_push)](const PushStats& stats) {
    const CallbackScope scope;
    if (!scope.may_call()) return;
    try {
      (*shared)(stats);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(*shared);
    }
  };
  return remote;
}

std::unique_ptr<CheckpointerHandle> OpenCheckpointer(
    const std::string& path, const std::string& run, std::string_view on_existing,
    std::string_view when_busy, std::string_view compression, uint64_t staging_budget_bytes,
    uint64_t pipeline_budget_bytes, int num_threads, int retries, double check_staging,
    const std::optional<RetentionPolicy>& retention, bool has_gpus,
    const std::optional<RemoteOptions>& remote, const nb::object& on_push, const nb::bytes& key) {
  NoteOpen();
  CheckMayWrite();
  const std::shared_ptr<Devices> devices = has_gpus ? Devices::Make() : nullptr;
  const CheckpointerOptions options{.run = run,
                                    .staging_budget_bytes = staging_budget_bytes,
                                    .store = {.compression = ParseCompression(compression),
                                              .pipeline_budget_bytes = pipeline_budget_bytes,
                                              .num_threads = num_threads,
                                              .key = std::string(key.c_str(), key.size())},
                                    .devices = devices,
                                    .on_existing = ParseOnExisting(on_existing),
                                    .when_busy = ParseWhenBusy(when_busy),
                                    .replicas = {},
                                    .retries = retries,
                                    .check_staging = check_staging,
                                    .retention = retention,
                                    .on_save = {},
                                    .remote = WithCallback(remote, on_push)};
  const nb::gil_scoped_release release;
  return std::make_unique<CheckpointerHandle>(ValueOrThrow(AsyncCheckpointer::Open(path, options)),
                                              devices, path);
}

// None: a value has to be a tuple (HeldTensors).
std::optional<bool> BeginSave(CheckpointerHandle* handle, uint64_t step, const nb::list& names,
                              const nb::list& roles, const nb::list& values, size_t num_lent,
                              const std::vector<std::pair<std::string, nb::bytes>>& items,
                              const TrainerProgress& progress,
                              const std::map<std::string, double>& metrics,
                              const std::vector<std::string>& tags,
                              const OptimizerStep* optimizer_step) {
  return handle->BeginSave(step, [&](HeldTensors* held) {
    if (!held->Take(names, roles, values, num_lent, handle->used_devices())) return false;
    TrainingState* const state = held->state();
    state->items.clear();
    for (const auto& [name, value] : items) {
      const auto* const begin = static_cast<const std::byte*>(value.data());
      state->items.push_back({name, std::nullopt, {begin, begin + value.size()}});
    }
    state->trainer = progress;
    state->metrics = metrics;
    state->tags = tags;
    state->optimizer_step =
        optimizer_step == nullptr ? nullptr : std::make_shared<OptimizerStep>(*optimizer_step);
    return true;
  });
}

// Fills the memory of tensors. What else the step has stays there. None: as above.
std::optional<uint64_t> Restore(CheckpointerHandle* handle, std::string_view step,
                                const nb::list& names, const nb::list& roles,
                                const nb::list& values) {
  HeldTensors held;
  if (!held.Take(names, roles, values, nb::len(values), handle->used_devices())) {
    return std::nullopt;
  }
  LoadOptions options;
  options.strictness = Strictness::kAssumeOkUnexpected;
  return handle->Restore(step, options, held.state()).id.step;
}

OptimizerStep MakeOptimizerStep(
    uint64_t number, double gradient_scale,
    const std::vector<std::tuple<double, double, double, double, double>>& groups,
    const std::vector<std::tuple<std::string, std::string, std::string, size_t>>& parameters) {
  OptimizerStep step{.number = number, .gradient_scale = gradient_scale};
  for (const auto& [learning_rate, beta1, beta2, eps, weight_decay] : groups) {
    step.groups.push_back({learning_rate, beta1, beta2, eps, weight_decay});
  }
  for (const auto& [weight, moment, square, group] : parameters) {
    step.parameters.push_back({weight, moment, square, group});
  }
  return step;
}

}  // namespace

void BindCheckpointer(nb::module_& module) {
  nb::class_<RetentionPolicy>(module, "RetentionPolicy", "Which steps stay after a save.")
      .def_static("make", MakePolicy, nb::arg("keep_last"), nb::arg("keep_every"),
                  nb::arg("keep_best"), nb::arg("keep_within_seconds"), nb::arg("keep_tags"));
  nb::class_<OptimizerStep>(module, "OptimizerStep", "What a step of Adam or AdamW did.")
      .def_static("make", MakeOptimizerStep, nb::arg("number"), nb::arg("gradient_scale"),
                  nb::arg("groups"), nb::arg("parameters"),
                  "A group is (lr, beta1, beta2, eps, weight_decay), a parameter the names of\n"
                  "(weight, first moment, second moment) and the number of its group.");
  nb::class_<CheckpointerHandle>(module, "Checkpointer", "Saves in the background of a training.")
      .def_prop_ro("store", [](const CheckpointerHandle& handle) { return handle.store(); })
      .def(
          "begin_save", BeginSave, nb::arg("step"), nb::arg("names"), nb::arg("roles"),
          nb::arg("values"), nb::arg("num_lent"), nb::arg("items"), nb::arg("progress"),
          nb::arg("metrics"), nb::arg("tags"), nb::arg("optimizer_step").none(),
          nb::sig("def begin_save(self, step: int, names: list[str], roles: list[str], values: "
                  "list[typing.Any], num_lent: int, items: collections.abc.Sequence[tuple[str, "
                  "bytes]], progress: TrainerProgress, metrics: collections.abc.Mapping[str, "
                  "float], tags: collections.abc.Sequence[str], optimizer_step: OptimizerStep | "
                  "None) -> bool | None"),
          "Starts a save of plain tensors of torch on the CPU, or dense on a GPU of use_devices.\n"
          "Those from number `num_lent` on are on the CPU, and copied. A tuple (dtype, shape,\n"
          "strides, address, owner, device) stands for any other tensor. The device is -1 for the\n"
          "CPU. False: the step is skipped. None: a tuple is needed for one of the values.")
      .def("use_devices", &CheckpointerHandle::UseDevices, nb::arg("devices"),
           nb::arg("current_stream"),
           nb::sig("def use_devices(self, devices: collections.abc.Sequence[int], current_stream: "
                   "collections.abc.Callable[[int], int]) -> None"),
           "Names the GPUs whose tensors saves and loads will be given, once, before the first of\n"
           "them. `current_stream(device)` gives the stream whose work comes before a save or "
           "load.\n"
           "UnavailableError: their tensors have to be copied to the CPU. It says why.")
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
             return handle->Look([](const AsyncCheckpointer& c) { return c.last_stats(); });
           })
      .def("last_push",
           [](CheckpointerHandle* handle) {
             return handle->Look([](const AsyncCheckpointer& c) { return c.last_push(); });
           })
      .def("close", &CheckpointerHandle::Close);
  module.def("open_checkpointer", OpenCheckpointer, nb::arg("path"), nb::arg("run"),
             nb::arg("on_existing"), nb::arg("when_busy"), nb::arg("compression"),
             nb::arg("staging_budget_bytes"), nb::arg("pipeline_budget_bytes"),
             nb::arg("num_threads"), nb::arg("retries"), nb::arg("check_staging"),
             nb::arg("retention").none(), nb::arg("has_gpus"), nb::arg("remote").none(),
             nb::arg("on_push"), nb::arg("key"));
}

}  // namespace varve::python
