// SPDX-License-Identifier: Apache-2.0
//
// Several entries of one name in a state are the shards of one tensor that a rank holds. Their
// layouts are of one global tensor and have no element in common. Functions are stateless.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "varve/training_state.h"

namespace varve::internal {

// Returns what is wrong with entries of one name, one text a name. Each names the tensor and the
// two entries that do not fit together.
std::vector<std::string> FindShardNameFaults(std::span<const StateTensor> tensors);

// Returns the number of each entry among those of its name. It follows from their layouts, so
// neither the order of the state nor another tensor changes it. Entries of two names that are cut
// alike get equal numbers. A name with one entry gets 0. Precondition: there are no faults.
std::vector<uint32_t> NumberShards(std::span<const StateTensor> tensors);

}  // namespace varve::internal
