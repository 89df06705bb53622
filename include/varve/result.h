// SPDX-License-Identifier: Apache-2.0
//
// Result<T> is a T or the Status that says why there is none.
//
//   varve::Result<std::unique_ptr<varve::Store>> store = varve::Store::Open(path, {});
//   if (!store.ok()) return store.status();
//   VARVE_ASSIGN_OR_RETURN(const auto runs, store.value()->ListRuns());
//
// A Result must be asked before its value is taken. To take the value of an error prints that error
// to standard error and aborts the process, in every build type. Thread rule: one thread at a time,
// as any value.
#pragma once

#include <cassert>
#include <optional>
#include <utility>

#include "varve/status.h"

namespace varve {
namespace internal {

// "varve: the value of a Result was taken, which is an error: not found: ..." on standard error.
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

  // All below print the error and abort unless ok().
  T& value() & { return RequireValue(), *value_; }
  const T& value() const& { return RequireValue(), *value_; }
  // By value, so that `for (auto& x : store->List().value())` does not dangle.
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

// VARVE_ASSIGN_OR_RETURN(auto reader, store->OpenCheckpoint("main", 10));
#define VARVE_ASSIGN_OR_RETURN(lhs, expr) \
  VARVE_ASSIGN_OR_RETURN_IMPL_(VARVE_CONCAT_(varve_result_, __COUNTER__), lhs, expr)
