// SPDX-License-Identifier: Apache-2.0
//
// Puts messages of a member, whose steps are attempts, into the words of the group. Stateless.
#pragma once

#include <string>
#include <string_view>

#include "store/group/group_state.h"
#include "varve/status.h"

namespace varve::internal {

// Replaces the numbers of attempts in a member's message by the names that people know: "step 7 of
// run main" becomes "step 15 of run main (attempt 7)". If no step is that attempt, it becomes
// "attempt 7".
std::string NameAttempts(std::string_view message, const GroupState& state);
Status NameAttempts(const Status& status, const GroupState& state);

}  // namespace varve::internal
