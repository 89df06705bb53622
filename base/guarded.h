// SPDX-License-Identifier: Apache-2.0
//
// varve throws nothing, but the standard library throws when memory or threads run out. The
// outermost frame of a thread, and code that waits for threads, turn the exception into an error.
// Any thread.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "varve/status.h"

namespace varve {

// Runs `work`, which returns a Status. If `work` throws, the result is kUnavailable and says what
// was thrown.
template <typename Work>
Status Guarded(std::string_view what, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return Status::Unavailable(std::string(what) + ": " + error.what());
  }
}

}  // namespace varve
