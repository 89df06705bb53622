// SPDX-License-Identifier: Apache-2.0
#include "varve/store.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

using Handle = std::shared_ptr<StoreHandle>;
using IdTuple = std::pair<std::string, uint64_t>;

std::vector<CheckpointId> ToIds(const std::vector<IdTuple>& tuples) {
  std::vector<CheckpointId> ids;
  for (const auto& [run, step] : tuples) ids.push_back({run, step});
  return ids;
}

Handle OpenStore(const std::string& path, std::string_view mode, std::string_view compression,
                 std::string_view entropy, uint64_t pipeline_budget_bytes, int num_threads,
                 const nb::bytes& key) {
  NoteOpen();
  if (mode != "r") CheckMayWrite();
  const StoreOptions options{.compression = ParseCompression(compression),
                             .entropy = ParseEntropy(entropy),
                             .pipeline_budget_bytes = pipeline_budget_bytes,
                             .num_threads = num_threads,
                             .key = std::string(key.c_str(), key.size())};
  const nb::gil_scoped_release release;
  if (mode == "r") {
    return std::make_shared<StoreHandle>(ValueOrThrow(Store::OpenForReading(path, options)), path);
  }
  if (mode == "a") {
    return std::make_shared<StoreHandle>(
        ValueOrThrow(Store::OpenOrCreate(path, {.store = options})), path);
  }
  if (mode == "w") {
    return std::make_shared<StoreHandle>(ValueOrThrow(Store::Create(path, {.store = options})),
                                         path);
  }
  throw StatusError(
      Status::InvalidArgument("mode \"" + std::string(mode) + "\" is not \"r\", \"a\" or \"w\""));
}

std::unique_ptr<WriterHandle> Begin(const Handle& store, uint64_t step, const std::string& run,
                                    std::string_view on_existing, std::optional<uint64_t> parent,
                                    bool verify_sharing, std::optional<std::string> compression,
                                    int num_threads, const nb::object& progress) {
  SaveOptions options{.run = run,
                      .on_existing = ParseOnExisting(on_existing),
                      .parent = parent,
                      .verify_sharing = verify_sharing,
                      .progress = MakeProgress(progress),
                      .num_threads = num_threads};
  if (compression) options.compression = ParseCompression(*compression);
  return std::make_unique<WriterHandle>(
      store, store->With([&](Store& s) { return ValueOrThrow(s.Begin(step, options)); }));
}

std::unique_ptr<ReaderHandle> OpenCheckpoint(const Handle& store, std::string_view run,
                                             uint64_t step) {
  return std::make_unique<ReaderHandle>(
      store, store->With([&](Store& s) { return ValueOrThrow(s.OpenCheckpoint(run, step)); }));
}

IdTuple Resolve(const Handle& store, std::string_view expression) {
  const CheckpointId id =
      store->With([&](Store& s) { return ValueOrThrow(s.Resolve(expression)); });
  return {id.run, id.step};
}

std::vector<RetentionDecision> DecideForget(const Handle& store, const std::string& run,
                                            uint64_t keep_last, uint64_t keep_every,
                                            const std::vector<KeepBestTuple>& keep_best,
                                            int64_t keep_within_seconds,
                                            const std::vector<std::string>& keep_tags) {
  const RetentionPolicy policy =
      MakePolicy(keep_last, keep_every, keep_best, keep_within_seconds, keep_tags);
  return store->With([&](Store& s) {
    return ValueOrThrow(DecideRetention(policy, ValueOrThrow(s.ListCheckpoints(run))));
  });
}

std::vector<SaveReport> CopyTo(const Handle& store, const Handle& destination,
                               const std::vector<IdTuple>& ids, const std::string& run,
                               std::string_view on_existing, const nb::object& progress) {
  const CopyOptions options{
      .run = run, .on_existing = ParseOnExisting(on_existing), .progress = MakeProgress(progress)};
  const std::vector<CheckpointId> wanted = ToIds(ids);
  return store->WithLong(*destination, [&](Store& from, Store& to) {
    return ValueOrThrow(from.CopyTo(&to, wanted, options));
  });
}

CheckReport Check(const Handle& store, bool read_data, double read_data_fraction,
                  const nb::object& progress) {
  const CheckOptions options{.read_data = read_data,
                             .read_data_fraction = read_data_fraction,
                             .progress = MakeProgress(progress)};
  return store->WithLong([&](Store& s) { return ValueOrThrow(s.Check(options)); });
}

BackupReport MakeBackup(const std::string& store, const std::string& destination, bool read_data,
                        const nb::object& progress) {
  CheckMayWrite();
  const BackupOptions options{.read_data = read_data, .progress = MakeProgress(progress)};
  const nb::gil_scoped_release release;
  return Interruptible([&] { return ValueOrThrow(BackUp(store, destination, options)); });
}

void BindLooking(nb::class_<StoreHandle>& store) {
  store
      .def("list_runs",
           [](const Handle& h) {
             return h->With([](Store& s) { return ValueOrThrow(s.ListRuns()); });
           })
      .def(
          "list_checkpoints",
          [](const Handle& h, std::string_view run) {
            return h->With([&](Store& s) { return ValueOrThrow(s.ListCheckpoints(run)); });
          },
          nb::arg("run"))
      .def("open_checkpoint", OpenCheckpoint, nb::arg("run"), nb::arg("step"))
      .def("resolve", Resolve, nb::arg("expression"))
      .def(
          "log",
          [](const Handle& h, std::string_view run, std::string_view tensor) {
            return h->With([&](Store& s) { return ValueOrThrow(s.Log(run, tensor)); });
          },
          nb::arg("run"), nb::arg("tensor"))
      .def(
          "diff",
          [](const Handle& h, const IdTuple& before, const IdTuple& after, bool values) {
            const DiffOptions options{.include = {}, .values = values};
            return h->WithLong([&](Store& s) {
              return ValueOrThrow(
                  s.Diff({before.first, before.second}, {after.first, after.second}, options));
            });
          },
          nb::arg("before"), nb::arg("after"), nb::arg("values"))
      .def("check", Check, nb::arg("read_data"), nb::arg("read_data_fraction"),
           nb::arg("progress").none())
      .def(
          "stats",
          [](const Handle& h) { return h->With([](Store& s) { return ValueOrThrow(s.Stats()); }); })
      .def("catch_up",
           [](const Handle& h) { h->With([](Store& s) { ThrowIfError(s.CatchUp()); }); });
}

void BindChanging(nb::class_<StoreHandle>& store) {
  store
      .def("begin", Begin, nb::arg("step"), nb::arg("run"), nb::arg("on_existing"),
           nb::arg("parent").none(), nb::arg("verify_sharing"), nb::arg("compression").none(),
           nb::arg("num_threads"), nb::arg("progress").none())
      .def(
          "set_metrics",
          [](const Handle& h, const IdTuple& id, const std::map<std::string, double>& metrics) {
            h->With([&](Store& s) { ThrowIfError(s.SetMetrics({id.first, id.second}, metrics)); });
          },
          nb::arg("id"), nb::arg("metrics"))
      .def(
          "set_tag",
          [](const Handle& h, const IdTuple& id, std::string_view tag) {
            h->With([&](Store& s) { ThrowIfError(s.SetTag({id.first, id.second}, tag)); });
          },
          nb::arg("id"), nb::arg("tag"))
      .def(
          "remove_tag",
          [](const Handle& h, std::string_view run, std::string_view tag) {
            h->With([&](Store& s) { ThrowIfError(s.RemoveTag(run, tag)); });
          },
          nb::arg("run"), nb::arg("tag"))
      .def(
          "fork",
          [](const Handle& h, std::string_view run, std::string_view new_run,
             std::optional<uint64_t> at) {
            return h->With([&](Store& s) { return ValueOrThrow(s.Fork(run, new_run, at)); });
          },
          nb::arg("run"), nb::arg("new_run"), nb::arg("at").none())
      .def(
          "rewind",
          [](const Handle& h, std::string_view run, uint64_t to) {
            return h->With([&](Store& s) { return ValueOrThrow(s.Rewind(run, to)); });
          },
          nb::arg("run"), nb::arg("to"));
}

void BindSpaceCalls(nb::class_<StoreHandle>& store) {
  store
      .def("decide_forget", DecideForget, nb::arg("run"), nb::arg("keep_last"),
           nb::arg("keep_every"), nb::arg("keep_best"), nb::arg("keep_within_seconds"),
           nb::arg("keep_tags"))
      .def(
          "forecast_drop",
          [](const Handle& h, const std::vector<IdTuple>& ids) {
            const std::vector<CheckpointId> wanted = ToIds(ids);
            return h->WithLong([&](Store& s) { return ValueOrThrow(s.ForecastDrop(wanted)); });
          },
          nb::arg("ids"))
      .def(
          "drop",
          [](const Handle& h, const std::vector<IdTuple>& ids, bool reclaim) {
            const std::vector<CheckpointId> wanted = ToIds(ids);
            return h->WithLong(
                [&](Store& s) { return ValueOrThrow(s.Drop(wanted, {.reclaim = reclaim})); });
          },
          nb::arg("ids"), nb::arg("reclaim"))
      .def(
          "reclaim",
          [](const Handle& h, bool all) {
            return h->WithLong([&](Store& s) { return ValueOrThrow(s.Reclaim({.all = all})); });
          },
          nb::arg("all"))
      .def("copy_to", CopyTo, nb::arg("destination"), nb::arg("ids"), nb::arg("run"),
           nb::arg("on_existing"), nb::arg("progress").none());
}

// Made at the first open of a process.
const ForkGuard& FirstOpen() {
  static const ForkGuard guard;
  return guard;
}

}  // namespace

void NoteOpen() { FirstOpen(); }

void CheckMayWrite() {
  if (!FirstOpen().InChild()) return;
  throw ForkedError(
      "this process was forked from one that had opened a store: it can open stores for reading "
      "only. "
      "Start a child that writes with the \"spawn\" or \"forkserver\" method");
}

void BindStore(nb::module_& module) {
  nb::class_<StoreHandle> store(module, "Store", "An open store.");
  store.def("close", &StoreHandle::Close)
      .def_prop_ro("path", [](const Handle& h) { return h->path(); })
      .def_prop_ro("is_open", [](const Handle& h) { return h->is_open(); });
  BindLooking(store);
  BindChanging(store);
  BindSpaceCalls(store);
  module.def("open", OpenStore, nb::arg("path"), nb::arg("mode"), nb::arg("compression"),
             nb::arg("entropy"), nb::arg("pipeline_budget_bytes"), nb::arg("num_threads"),
             nb::arg("key"));
  module.def("backup", MakeBackup, nb::arg("store"), nb::arg("destination"), nb::arg("read_data"),
             nb::arg("progress").none());
}

}  // namespace varve::python
