// SPDX-License-Identifier: Apache-2.0
//
// The border to C. Every function of varve/c.h that can fail runs in Call, so that no exception
// crosses the border, and so that the message of an error is kept for the thread.
#pragma once

#include <exception>
#include <new>

#include "varve/c.h"
#include "varve/status.h"

namespace varve::internal::capi {

// Keeps the message for varve_last_error. Returns the status as a number of C.
varve_status Keep(const char* function, const Status& status) noexcept;
// The same for an exception. `thrown` says what it is.
varve_status KeepThrown(const char* function, const char* thrown) noexcept;

// Runs `work`, which returns a Status.
template <typename Work>
varve_status Call(const char* function, const Work& work) noexcept {
  try {
    return Keep(function, work());
  } catch (const std::exception& error) {
    return KeepThrown(function, error.what());
  } catch (...) {
    return KeepThrown(function, "an exception that is no std::exception");
  }
}

// Runs `work`, which returns nothing, of a function that cannot report an error.
template <typename Work>
void CallQuietly(const char* function, const Work& work) noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    KeepThrown(function, error.what());
  } catch (...) {
    KeepThrown(function, "an exception that is no std::exception");
  }
}

}  // namespace varve::internal::capi
