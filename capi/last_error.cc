// SPDX-License-Identifier: Apache-2.0
#include "capi/last_error.h"

#include <string>

namespace varve::internal::capi {

namespace {

struct LastError {
  std::string text;
  const char* shown = "";
};
thread_local LastError last_error;

void Show(const Status& status) {
  last_error.text = status.ToString();
  last_error.shown = last_error.text.c_str();
}

void ShowWithoutMemory() { last_error.shown = "unavailable: out of memory"; }

}  // namespace

varve_status Keep(const char* function, const Status& status) noexcept {
  if (status.ok()) return VARVE_OK;
  try {
    // The caller can mend a wrong argument, so the message says where it is.
    const bool is_argument = status.code() == StatusCode::kInvalidArgument;
    Show(is_argument ? status.WithContext(function) : status);
  } catch (...) {
    ShowWithoutMemory();
  }
  return static_cast<varve_status>(status.code());
}

varve_status KeepThrown(const char* function, const char* thrown) noexcept {
  try {
    Show(Status::Unavailable(std::string(function) + ": " + thrown));
  } catch (...) {
    ShowWithoutMemory();
  }
  return VARVE_UNAVAILABLE;
}

static_assert(static_cast<int>(StatusCode::kOk) == VARVE_OK);
static_assert(static_cast<int>(StatusCode::kNotFound) == VARVE_NOT_FOUND);
static_assert(static_cast<int>(StatusCode::kAlreadyExists) == VARVE_ALREADY_EXISTS);
static_assert(static_cast<int>(StatusCode::kInvalidArgument) == VARVE_INVALID_ARGUMENT);
static_assert(static_cast<int>(StatusCode::kCorruption) == VARVE_CORRUPTION);
static_assert(static_cast<int>(StatusCode::kIOError) == VARVE_IO_ERROR);
static_assert(static_cast<int>(StatusCode::kLocked) == VARVE_LOCKED);
static_assert(static_cast<int>(StatusCode::kUnavailable) == VARVE_UNAVAILABLE);
static_assert(static_cast<int>(StatusCode::kFailedPrecondition) == VARVE_FAILED_PRECONDITION);
static_assert(static_cast<int>(StatusCode::kAborted) == VARVE_ABORTED);

}  // namespace varve::internal::capi

const char* varve_last_error(void) { return varve::internal::capi::last_error.shown; }

const char* varve_status_name(varve_status status) {
  if (status < VARVE_OK || status > VARVE_ABORTED) return "?";
  return varve::StatusCodeName(static_cast<varve::StatusCode>(status)).data();
}
