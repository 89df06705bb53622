// SPDX-License-Identifier: Apache-2.0
//
// Calls of Python on threads of varve. When an interpreter ends, Python ends each thread that then
// asks for the GIL, which aborts the process. So these calls stop before that.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

namespace varve::python {

// Holds the GIL for a call of Python, on a thread that does not hold it or on one that does.
class CallbackScope {
 public:
  CallbackScope();
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
  ~CallbackScope();

  // False: the interpreter ends, and this thread does not hold the GIL. Nothing of Python may be
  // touched then.
  bool may_call() const { return gil_.has_value(); }

 private:
  std::optional<nanobind::gil_scoped_acquire> gil_;
};

// Says whether this thread has a CallbackScope.
bool IsInCallback();

// Makes `end_callbacks` a function of the module, and lets the interpreter call it at its end.
void BindCallbacks(nanobind::module_& module);

}  // namespace varve::python
