// SPDX-License-Identifier: Apache-2.0
//
// What both sides of a save of a group agree on. Stateless.
#pragma once

#include <string>
#include <string_view>

#include "store/group/group_state.h"
#include "varve/status.h"

namespace varve {

// What became of an attempt that is open no more; ok: it was committed.
Status OutcomeOf(const GroupState& state, AttemptId attempt);

// kInvalidArgument: an item name that another rank's could be shown under.
Status ValidateGroupItem(std::string_view name);

}  // namespace varve
