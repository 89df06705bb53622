// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "varve/training_state.h"

namespace varve::internal {

// Returns the bytes of all tensors. Tied tensors count once, and sizes that are out of range count
// as nothing.
uint64_t StateBytes(std::span<const StateTensor> tensors);

}  // namespace varve::internal
