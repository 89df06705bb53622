// SPDX-License-Identifier: Apache-2.0
//
// How a Status of varve becomes a Python exception: one class for each status code
// (varve/_errors.py), with the message of the Status unchanged.
#pragma once

#include <exception>
#include <utility>

#include "varve/result.h"
#include "varve/status.h"

namespace varve::python {

class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return status_.message().c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// Something was used in a forked child that needs the threads of the parent process.
class ForkedError : public std::exception {
 public:
  explicit ForkedError(const char* message) : message_(message) {}
  const char* what() const noexcept override { return message_; }

 private:
  const char* message_;  // lives for ever
};

inline void ThrowIfError(Status status) {
  if (!status.ok()) throw StatusError(std::move(status));
}

template <typename T>
T ValueOrThrow(Result<T> result) {
  if (!result.ok()) throw StatusError(result.status());
  return *std::move(result);
}

// Teaches nanobind both exceptions above.
void RegisterErrors();

}  // namespace varve::python
