// SPDX-License-Identifier: Apache-2.0
#include "capi/last_error.h"

#include <pthread.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace varve::internal::capi {

namespace {

// The newest message of a thread. A thread_local std::string would not do: the first use of an
// object with a destructor ends the process if the C library has no memory to note it.
thread_local const char* shown = "";

// Frees the text of a thread that ends. Returns whether there is such a key.
bool MakeKey(pthread_key_t* key) { return ::pthread_key_create(key, std::free) == 0; }

void ShowWithoutMemory() { shown = "unavailable: out of memory"; }

void Show(const Status& status) {
  static pthread_key_t key;
  static const bool has_key = MakeKey(&key);
  char* const text = has_key ? ::strdup(status.ToString().c_str()) : nullptr;
  if (text == nullptr) return ShowWithoutMemory();
  char* const before = static_cast<char*>(::pthread_getspecific(key));
  if (::pthread_setspecific(key, text) != 0) {
    std::free(text);
    return ShowWithoutMemory();
  }
  shown = text;
  std::free(before);
}

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

const char* varve_last_error(void) { return varve::internal::capi::shown; }

const char* varve_status_name(varve_status status) {
  if (status < VARVE_OK || status > VARVE_ABORTED) return "?";
  return varve::StatusCodeName(static_cast<varve::StatusCode>(status)).data();
}
