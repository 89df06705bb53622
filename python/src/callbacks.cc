// SPDX-License-Identifier: Apache-2.0
#include "python/src/callbacks.h"

#include <atomic>

#include "python/src/handles.h"

namespace nb = nanobind;

namespace varve::python {
namespace {

std::atomic<int> num_scopes{0};
std::atomic<bool> has_ended{false};
thread_local int depth = 0;  // of the scopes of this thread

void Leave() {
  --depth;
  num_scopes.fetch_sub(1);
  num_scopes.notify_all();
}

// Waits for the calls that are under way. The threads of a parent process are not here, so a
// forked child does not wait for theirs.
void EndCallbacks(const ForkGuard& guard) {
  has_ended = true;
  if (guard.InChild()) return;
  const nb::gil_scoped_release release;
  for (int now = num_scopes; now > depth; now = num_scopes) num_scopes.wait(now);
}

}  // namespace

CallbackScope::CallbackScope() {
  ++depth;
  num_scopes.fetch_add(1);
  const bool holds_gil = PyGILState_Check() != 0;  // as the interpreter itself at its end
  if (!has_ended || holds_gil) gil_.emplace();
}

CallbackScope::~CallbackScope() {
  gil_.reset();
  Leave();
}

bool IsInCallback() { return depth > 0; }

void BindCallbacks(nb::module_& module) {
  static const ForkGuard guard;
  module.def(
      "end_callbacks", [] { EndCallbacks(guard); },
      "Threads of varve call no Python from here on.");
  module.def("is_in_callback", IsInCallback, "Whether a thread of varve runs this.");
  nb::module_::import_("atexit").attr("register")(module.attr("end_callbacks"));
}

}  // namespace varve::python
