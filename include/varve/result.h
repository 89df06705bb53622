// SPDX-License-Identifier: Apache-2.0
//
// Result<T> is a T or the Status that says why there is none.
//
//   varve::Result<std::unique_ptr<varve::Store>> store = varve::Store::Open(path, {});
//   if (!store.ok()) return store.status();
//   (*store)->...
#pragma once

#include <cassert>
#include <optional>
#include <utility>

#include "varve/status.h"

namespace varve {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok() && "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Precondition of all below: ok().
  T& value() & { return assert(ok()), *value_; }
  const T& value() const& { return assert(ok()), *value_; }
  // By value, so that `for (auto& x : store->List().value())` does not dangle.
  T value() && { return assert(ok()), *std::move(value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
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
