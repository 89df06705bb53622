// SPDX-License-Identifier: Apache-2.0
#include "varve/status.h"

#include <cstdio>
#include <cstdlib>

#include "varve/result.h"

namespace varve {
std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kAlreadyExists:
      return "already exists";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kCorruption:
      return "corruption";
    case StatusCode::kIOError:
      return "I/O error";
    case StatusCode::kLocked:
      return "locked";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kFailedPrecondition:
      return "failed precondition";
    case StatusCode::kAborted:
      return "aborted";
  }
  return "unknown";
}

std::string Status::ToString() const {
  std::string text(StatusCodeName(code_));
  if (!message_.empty()) text.append(": ").append(message_);
  return text;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context).append(": ").append(message_)};
}

}  // namespace varve

namespace varve::internal {

void DieWithoutValue(const Status& status) {
  std::fprintf(stderr, "varve: the value of a Result was taken, which is an error: %s\n",
               status.ToString().c_str());
  std::abort();
}

}  // namespace varve::internal
