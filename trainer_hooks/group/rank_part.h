// SPDX-License-Identifier: Apache-2.0
//
// Makes the part of a rank's training state that this rank saves. The function is stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "trainer_hooks/group/held_tensor.h"

namespace varve::internal {

// Returns the state with those parts of its tensors that the plan gives to the rank
// (ReplicaPlan::writes). All of them have layouts, except tensors that are kept per rank. These are
// named "rank_00003/NAME". `held` has the tensors of the state. kInvalidArgument: a name has the
// form of such a name, or cannot be made into one, or a rank has several shards of a tensor that is
// kept per rank.
Result<TrainingState> PartOf(const TrainingState& state, std::span<const HeldTensor> held,
                             std::span<const std::optional<Range>> writes, uint32_t rank);

}  // namespace varve::internal
