// SPDX-License-Identifier: Apache-2.0
//
// Result<T> is a T or the Status that says why there is none.
//
//   varve::Result<std::unique_ptr<varve::Store>> store = varve::Store::Open(path, {});
//   if (!store.ok()) return store.status();
//   VARVE_ASSIGN_OR_RETURN(const auto runs, store.value()->ListRuns());
//
// Call ok() before value(). When a Result holds an error, value() prints it to standard error and
// aborts the process, in every build type.
//
// Thread rule: one thread at a time.
#pragma once

#include <cassert>
#include <optional>
#include <utility>

#include "varve/status.h"

namespace varve {
namespace internal {

// Prints "varve: the value of a Result was taken, which is an error: not found: ..." to standard
// error, and aborts.
[[noreturn]] void DieWithoutValue(const Status& status);

}  // namespace internal

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok() && "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // All functions below print the error and abort when there is no value.
  T& value() & { return RequireValue(), *value_; }
  const T& value() const& { return RequireValue(), *value_; }
  // Returns by value, so that a loop over `store->ListRuns().value()` does not dangle.
  T value() && { return RequireValue(), *std::move(value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void RequireValue() const {
    if (!value_.has_value()) internal::DieWithoutValue(status_);
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace varve

#define VARVE_ASSIGN_OR_RETURN_IMPL_(result, lhs, expr) \
  auto result = (expr);                                 \
  if (!result.ok()) return result.status();             \
  lhs = *std::move(result)

// Returns the error of `expr`, a Result, from the enclosing function, or assigns its value to
// `lhs`:
//
//   VARVE_ASSIGN_OR_RETURN(auto reader, store->OpenCheckpoint("main", 10));
#define VARVE_ASSIGN_OR_RETURN(lhs, expr) \
  VARVE_ASSIGN_OR_RETURN_IMPL_(VARVE_CONCAT_(varve_result_, __COUNTER__), lhs, expr)
