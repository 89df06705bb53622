// SPDX-License-Identifier: Apache-2.0
//
// What of a rank's training state that rank saves. Functions are stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "trainer_hooks/group/held_tensor.h"

namespace varve::internal {

// The state with those parts of its tensors that the plan gives to the rank (ReplicaPlan::writes),
// all of them with layouts; tensors that are kept per rank have none, and are named
// "rank_00003/NAME". `held` is ListHeld of the state. kInvalidArgument: a name that cannot be that
// of a rank's tensor, or is one.
Result<TrainingState> PartOf(const TrainingState& state, std::span<const HeldTensor> held,
                             std::span<const std::optional<Range>> writes, uint32_t rank);

}  // namespace varve::internal
