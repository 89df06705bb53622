// SPDX-License-Identifier: Apache-2.0
//
// Several entries of one name in a state: the shards of one tensor that a rank holds. They have
// layouts of one global tensor with no element in common. Functions are stateless.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "varve/training_state.h"

namespace varve {

// What is wrong with entries of one name, one text a name; each names the tensor, and the two
// entries that do not go together.
std::vector<std::string> FindShardNameFaults(std::span<const StateTensor> tensors);

// The number of each entry among those of its name, by their layouts: so neither the order of the
// state nor another tensor changes it, and entries of two names that are cut alike are numbered
// alike. 0 for a name that is there once. Precondition: no faults.
std::vector<uint32_t> NumberShards(std::span<const StateTensor> tensors);

}  // namespace varve
