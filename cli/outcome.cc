// SPDX-License-Identifier: Apache-2.0
#include "cli/outcome.h"

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

Outcome::Outcome(const Status& status) : code_(CodeOf(status.code())), message_(status.message()) {}

}  // namespace varve::internal::cli
