// SPDX-License-Identifier: Apache-2.0
//
// The parts of the module varve._core. Each function adds one of them. The module is private: the
// package in python/varve gives users its arrays and names.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

#include "varve/options.h"

namespace varve::python {

void BindRecords(nanobind::module_& module);   // plain values that calls return
void BindProgress(nanobind::module_& module);  // trainer state
void BindWriter(nanobind::module_& module);
void BindReader(nanobind::module_& module);
void BindStore(nanobind::module_& module);
void BindExport(nanobind::module_& module);  // memory for other frameworks: DLPack

// "auto", "none", "fast" or "max", and "error", "replace" or "fork". kInvalidArgument: another
// word.
Compression ParseCompression(std::string_view name);
OnExisting ParseOnExisting(std::string_view name);

// A progress function that calls `callback(done_bytes, total_bytes)` from a thread of varve. None
// gives none. An exception of the callback goes to sys.unraisablehook, as the operation goes on.
Progress MakeProgress(const nanobind::object& callback);

}  // namespace varve::python
