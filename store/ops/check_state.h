// SPDX-License-Identifier: Apache-2.0
//
// The parts of a check besides tensors and chunks: what steps keep in family state, and the tags
// and counters in family meta. Stateless. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "store/db/database.h"
#include "store/format/record.h"

namespace varve::internal {

// What a check has found so far, and where it reports to.
struct CheckedSteps {
  const std::map<RunId, std::string>& runs;
  const std::map<StepKey, StepRecord>& steps;
  std::function<std::string(StepKey)> name;
  std::function<void(std::string)> error;
};

// Checks that every entry belongs to a step and decodes. Items must have their digest, and their
// number must be the one in their step.
Status CheckState(const Database& database, uint64_t digest_seed, const CheckedSteps& checked);

// Checks that tags name existing steps, and that the next save id and run were never used.
Status CheckMeta(const Database& database, uint64_t highest_save_id, const CheckedSteps& checked);

}  // namespace varve::internal
