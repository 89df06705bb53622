// SPDX-License-Identifier: Apache-2.0
//
// The parts of a check beside tensors and chunks: what steps keep in family state, and tags and
// counters in family meta. Stateless; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "store/db/database.h"
#include "store/format/record.h"

namespace varve {

// What a check has found so far, and where it reports to.
struct CheckedSteps {
  const std::map<RunId, std::string>& runs;
  const std::map<StepKey, StepRecord>& steps;
  std::function<std::string(StepKey)> name;
  std::function<void(std::string)> error;
};

// Every entry belongs to a step and decodes; items have their digest and are as many as their step
// says.
Status CheckState(const Database& database, uint64_t digest_seed, const CheckedSteps& checked);

// Tags name steps that exist; the next save id and run were never used.
Status CheckMeta(const Database& database, uint64_t highest_save_id, const CheckedSteps& checked);

}  // namespace varve
