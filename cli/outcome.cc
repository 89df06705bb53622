// SPDX-License-Identifier: Apache-2.0
#include "cli/outcome.h"

#include <algorithm>
#include <cstddef>

namespace varve::internal::cli {
namespace {

ExitCode CodeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return ExitCode::kDone;
    case StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case StatusCode::kAlreadyExists:
      return ExitCode::kAlreadyExists;
    case StatusCode::kInvalidArgument:
      return ExitCode::kUsage;
    case StatusCode::kCorruption:
      return ExitCode::kDamaged;
    case StatusCode::kLocked:
      return ExitCode::kLocked;
    case StatusCode::kIOError:
    case StatusCode::kUnavailable:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kAborted:
      return ExitCode::kFailed;
  }
  return ExitCode::kFailed;
}

}  // namespace

Outcome Outcome::Incomplete(std::string_view lead, std::span<const std::string> errors) {
  if (errors.empty()) return {};
  constexpr size_t kMaxNamed = 10;
  const size_t num_named = std::min(errors.size(), kMaxNamed);
  std::string message = std::string(lead) + " what cannot be read";
  for (size_t i = 0; i < num_named; ++i) message += (i == 0 ? ": " : "; ") + errors[i];
  if (errors.size() > num_named) {
    message += "; and " + std::to_string(errors.size() - num_named) + " more";
  }
  return {ExitCode::kDamaged, std::move(message)};
}

Outcome::Outcome(const Status& status) : code_(CodeOf(status.code())), message_(status.message()) {}

}  // namespace varve::internal::cli
