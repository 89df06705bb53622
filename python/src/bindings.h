// SPDX-License-Identifier: Apache-2.0
//
// The parts of the module varve._core. Each function adds one of them. The module is private: the
// package in python/varve gives users its arrays and names.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "varve/options.h"
#include "varve/retention.h"
#include "varve/tensor.h"

namespace varve::python {

void BindRecords(nanobind::module_& module);   // plain values that calls return
void BindProgress(nanobind::module_& module);  // trainer state
void BindWriter(nanobind::module_& module);
void BindReader(nanobind::module_& module);
void BindStore(nanobind::module_& module);
void BindExport(nanobind::module_& module);  // memory for other frameworks: DLPack
void BindCheckpointer(nanobind::module_& module);
void BindGroup(nanobind::module_& module);
void BindStage(nanobind::module_& module);
void BindForeign(nanobind::module_& module);      // files of other formats
void BindTorchMemory(nanobind::module_& module);  // plain tensors of torch
void BindMasters(nanobind::module_& module);
void BindRemote(nanobind::module_& module);  // object stores

// "auto", "none", "fast" or "max", and "error", "replace" or "fork". kInvalidArgument: another
// word.
Compression ParseCompression(std::string_view name);
Entropy ParseEntropy(std::string_view name);
OnExisting ParseOnExisting(std::string_view name);
// The same for names of dtypes and roles.
DType RequireDType(std::string_view name);
TensorRole RequireRole(std::string_view name);

// kInvalidArgument: the number is negative, no number, or more than a million days.
std::chrono::milliseconds ParseSeconds(std::string_view what, double seconds);

// The best steps by a metric, as (metric, whether the highest is best, count).
using KeepBestTuple = std::tuple<std::string, bool, uint64_t>;
RetentionPolicy MakePolicy(uint64_t keep_last, uint64_t keep_every,
                           const std::vector<KeepBestTuple>& keep_best, int64_t keep_within_seconds,
                           const std::vector<std::string>& keep_tags);

// RocksDB and TBB keep threads for the whole process. A forked child of a process that had opened a
// store has none of them and cannot start others, so that a write there would wait for ever. Throws
// ForkedError there. The first call of a process, which is at its first open, notes the process.
void NoteOpen();
void CheckMayWrite();

// An object of Python in a function of C++, whose last copy may die without the GIL.
std::shared_ptr<nanobind::object> ShareWithoutGil(const nanobind::object& object);

// A progress function that calls `callback(done_bytes, total_bytes)` from a thread of varve. None
// gives none. An exception of the callback goes to sys.unraisablehook, as the operation goes on.
Progress MakeProgress(const nanobind::object& callback);

}  // namespace varve::python
