// SPDX-License-Identifier: Apache-2.0
//
// How a verb ends: an exit code and, unless it is 0, one line for standard error. A plain value.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "varve/status.h"

namespace varve::internal::cli {

// The contract with scripts. Never renumber these. The help topic exit-codes explains them.
enum class ExitCode {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kDamaged = 3,
  kNoStore = 10,
  kLocked = 11,
  kNotFound = 12,
  kAlreadyExists = 13,
};

class [[nodiscard]] Outcome {
 public:
  Outcome() = default;  // done
  Outcome(ExitCode code, std::string message) : code_(code), message_(std::move(message)) {}
  // Takes the code that suits an error of the library.
  Outcome(const Status& status);  // NOLINT(google-explicit-constructor)

  // Exit code 1, whatever the status says. It is for errors that are not about the store.
  static Outcome Failed(const Status& status) { return {ExitCode::kFailed, status.message()}; }
  // Exit code 3, for an answer that was printed without what `errors` name. `lead` is such as "the
  // list leaves out". It says the first ten errors and how many more there are. Without an
  // error it is done.
  static Outcome Incomplete(std::string_view lead, std::span<const std::string> errors);
  static Outcome Usage(std::string message) { return {ExitCode::kUsage, std::move(message)}; }

  bool ok() const { return code_ == ExitCode::kDone; }
  ExitCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  ExitCode code_ = ExitCode::kDone;
  std::string message_;
};

}  // namespace varve::internal::cli
