// SPDX-License-Identifier: Apache-2.0
//
// Makes the parts of a rank's tensors that this rank saves. The function is stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trainer_hooks/group/held_tensor.h"

namespace varve::internal {

// Returns those parts of the tensors of a state that the plan gives to the rank
// (ReplicaPlan::writes). All of them have layouts, except tensors that are kept per rank. These are
// named "rank_00003/NAME". `held` has the same tensors. kInvalidArgument: a name has the
// form of such a name, or cannot be made into one, or a rank has several shards of a tensor that is
// kept per rank.
Result<std::vector<StateTensor>> PartOf(std::span<const StateTensor> tensors,
                                        std::span<const HeldTensor> held,
                                        std::span<const std::optional<Range>> writes,
                                        uint32_t rank);

}  // namespace varve::internal
