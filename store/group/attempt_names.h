// SPDX-License-Identifier: Apache-2.0
//
// What a member says of its steps, in the words of the group. Stateless.
#pragma once

#include <string>
#include <string_view>

#include "store/group/group_state.h"
#include "varve/status.h"

namespace varve {

// A message of a member, whose steps are numbers of attempts, with the names that people know them
// by: "step 7 of run main" becomes "step 15 of run main (attempt 7)", or "attempt 7" when no step
// is it.
std::string NameAttempts(std::string_view message, const GroupState& state);
Status NameAttempts(const Status& status, const GroupState& state);

}  // namespace varve
