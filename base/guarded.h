// SPDX-License-Identifier: Apache-2.0
//
// varve throws nothing, but the standard library does when there is no memory or no thread to be
// had. The outermost frame of a thread, and what waits for threads, turn that into an error. Any
// thread.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "varve/status.h"

namespace varve {

// Runs `work`, which returns a Status. kUnavailable says what threw and why.
template <typename Work>
Status Guarded(std::string_view what, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return Status::Unavailable(std::string(what) + ": " + error.what());
  }
}

}  // namespace varve
