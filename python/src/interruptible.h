// SPDX-License-Identifier: Apache-2.0
//
// Long calls that Ctrl-C can end. Python runs the handlers of signals on its main thread only,
// between two of its own instructions. So a long call of the main thread runs on a thread of its
// own, and the main thread runs the handlers meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace varve::python {

// Runs `call`. If the handler of a signal raises, as that of Ctrl-C does, the call is asked to stop
// (varve/stop.h), and when it is over, the exception of the handler is raised in place of its own.
// The caller has no GIL, and neither has `call`.
void RunInterruptible(const std::function<void()>& call);

template <typename Call>
auto Interruptible(const Call& call) {
  using Value = std::invoke_result_t<Call>;
  if constexpr (std::is_void_v<Value>) {
    RunInterruptible(call);
  } else {
    std::optional<Value> value;
    RunInterruptible([&] { value.emplace(call()); });
    return *std::move(value);
  }
}

}  // namespace varve::python
