// SPDX-License-Identifier: Apache-2.0
//
// The two runs of the crash test and what they save, shared by the writer that is killed and the
// reader that judges. Stateless.
#pragma once

#include <string>

#include "tests/support/step_content.h"

namespace varve::internal::testing {

inline constexpr const char* kLargeRun = "large";  // megabytes a step, some chunks shared
inline constexpr const char* kSmallRun = "small";  // kilobytes a step: many saves, to be merged

inline ContentPlan PlanOf(const std::string& run) {
  if (run == kLargeRun) {
    return {.seed = 11, .num_tensors = 9, .max_tensor_bytes = uint64_t{3} << 20, .period = 3};
  }
  return {.seed = 12, .num_tensors = 7, .max_tensor_bytes = uint64_t{4} << 10, .period = 2};
}

}  // namespace varve::internal::testing
