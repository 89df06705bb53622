// SPDX-License-Identifier: Apache-2.0
//
// varve throws nothing, but the standard library throws when memory or threads run out. The
// outermost frame of a thread, code that waits for threads, and every call of the public interface
// (store/db/guarded_store.h) turn the exception into an error. Any thread.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <type_traits>

#include "varve/status.h"

namespace varve::internal {

// Returns kUnavailable. It says what was thrown, if there is memory for that.
inline Status StatusOfThrown(std::string_view what, const char* thrown) noexcept {
  try {
    return Status::Unavailable(std::string(what) + ": " + thrown);
  } catch (const std::exception&) {
    return Status::Unavailable("out of memory");  // so short that it lies in the string itself
  }
}

// Runs `work`, which returns a Status or a Result. If `work` throws, the result is kUnavailable and
// says what was thrown.
template <typename Work>
std::invoke_result_t<const Work&> Guarded(std::string_view what, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return StatusOfThrown(what, error.what());
  }
}

}  // namespace varve::internal
