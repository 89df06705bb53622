// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "varve/training_state.h"

namespace varve {

// Bytes of all tensors, those that are tied once. Sizes that are out of range count as nothing.
uint64_t StateBytes(const TrainingState& state);

}  // namespace varve
