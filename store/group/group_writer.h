// SPDX-License-Identifier: Apache-2.0
//
// What both sides of a save of a group agree on. Stateless.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "store/group/group_record.h"
#include "store/group/group_state.h"
#include "varve/result.h"
#include "varve/status.h"
#include "varve/store.h"

namespace varve {

// What became of an attempt that is open no more; ok: it was committed.
Status OutcomeOf(const GroupState& state, AttemptId attempt);

// What rank 0 appends to begin an attempt, whose number it leaves in `*proposed`. Nothing: the
// attempt of that number and nonce has begun, and may have been given up since.
Result<std::optional<RecordBody>> ProposeBegin(const GroupState& state, const CheckpointId& id,
                                               const SaveOptions& options, uint64_t nonce,
                                               AttemptId* proposed);

// kInvalidArgument: an item name that another rank's could be shown under.
Status ValidateGroupItem(std::string_view name);

}  // namespace varve
