// SPDX-License-Identifier: Apache-2.0
//
// Object stores: push, pull, opening by URL, and what a checkpointer pushes in the background.
#include "varve/remote.h"

#include <nanobind/stl/chrono.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "python/src/bindings.h"
#include "python/src/errors.h"
#include "python/src/handles.h"
#include "python/src/interruptible.h"
#include "varve/async_checkpointer.h"
#ifdef VARVE_HAS_RADOS
#include "varve/rados.h"
#endif
#ifdef VARVE_HAS_S3
#include "varve/s3.h"
#endif

namespace nb = nanobind;

namespace varve::python {
namespace {

PushReport MakePush(const std::string& store, const std::string& url,
                    const std::vector<std::string>& steps, bool dry_run, int num_threads,
                    const nb::object& progress) {
  CheckMayWrite();
  const PushOptions options{.dry_run = dry_run,
                            .progress = MakeProgress(progress),
                            .num_threads = num_threads,
                            .steps = steps};
  const nb::gil_scoped_release release;
  return Interruptible([&] { return ValueOrThrow(Push(store, url, options)); });
}

PullReport MakePull(const std::string& url, const std::string& destination,
                    std::optional<uint64_t> snapshot, bool dry_run, bool read_data, int num_threads,
                    const nb::object& progress) {
  CheckMayWrite();
  const PullOptions options{.dry_run = dry_run,
                            .read_data = read_data,
                            .snapshot = snapshot,
                            .progress = MakeProgress(progress),
                            .num_threads = num_threads};
  const nb::gil_scoped_release release;
  return Interruptible([&] { return ValueOrThrow(Pull(url, destination, options)); });
}

std::shared_ptr<StoreHandle> OpenUrl(const std::string& url, std::optional<uint64_t> snapshot,
                                     const std::string& cache_folder, uint64_t cache_bytes,
                                     uint64_t pipeline_budget_bytes, int num_threads) {
  NoteOpen();
  const RemoteStoreOptions options{
      .snapshot = snapshot,
      .cache_folder = cache_folder,
      .cache_bytes = cache_bytes,
      .store = {.pipeline_budget_bytes = pipeline_budget_bytes, .num_threads = num_threads}};
  const nb::gil_scoped_release release;
  return Interruptible(
      [&] { return std::make_shared<StoreHandle>(ValueOrThrow(OpenRemote(url, options)), url); });
}

std::vector<SnapshotInfo> Snapshots(const std::string& url) {
  const nb::gil_scoped_release release;
  return Interruptible([&] { return ValueOrThrow(ListSnapshots(url)); });
}

RemoteReclaimReport ReclaimUrl(const std::string& url, std::optional<uint64_t> keep_last,
                               bool dry_run, double wait_for_pushes) {
  CheckMayWrite();
  const RemoteReclaimOptions options{
      .keep_last = keep_last,
      .dry_run = dry_run,
      .wait_for_pushes = ParseSeconds("wait_for_pushes", wait_for_pushes)};
  const nb::gil_scoped_release release;
  return Interruptible([&] { return ValueOrThrow(ReclaimRemote(url, options)); });
}

RemoteOptions MakeRemoteOptions(const std::string& url, uint64_t interval, uint64_t keep,
                                bool retention_waits, bool failure_is_fatal, double close_timeout) {
  return {.url = url,
          .interval = interval,
          .keep = keep,
          .retention_waits = retention_waits,
          .failure_is_fatal = failure_is_fatal,
          .close_timeout = ParseSeconds("remote_close_timeout", close_timeout)};
}

void UseEngines() {
#ifdef VARVE_HAS_RADOS
  UseRados();
#endif
#ifdef VARVE_HAS_S3
  UseS3();
#endif
}

}  // namespace

void BindRemote(nb::module_& module) {
  UseEngines();
  nb::class_<RemoteOptions>(module, "RemoteOptions", "What a checkpointer pushes, and where to.")
      .def_static("make", MakeRemoteOptions, nb::arg("url"), nb::arg("interval"), nb::arg("keep"),
                  nb::arg("retention_waits"), nb::arg("failure_is_fatal"),
                  nb::arg("close_timeout"));
  module.def("push", MakePush, nb::arg("store"), nb::arg("url"), nb::arg("steps"),
             nb::arg("dry_run"), nb::arg("num_threads"), nb::arg("progress").none());
  module.def("pull", MakePull, nb::arg("url"), nb::arg("destination"), nb::arg("snapshot").none(),
             nb::arg("dry_run"), nb::arg("read_data"), nb::arg("num_threads"),
             nb::arg("progress").none());
  module.def("open_remote", OpenUrl, nb::arg("url"), nb::arg("snapshot").none(),
             nb::arg("cache_folder"), nb::arg("cache_bytes"), nb::arg("pipeline_budget_bytes"),
             nb::arg("num_threads"));
  module.def("snapshots", Snapshots, nb::arg("url"));
  module.def("reclaim_remote", ReclaimUrl, nb::arg("url"), nb::arg("keep_last").none(),
             nb::arg("dry_run"), nb::arg("wait_for_pushes"));
}

}  // namespace varve::python
