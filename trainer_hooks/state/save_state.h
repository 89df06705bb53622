// SPDX-License-Identifier: Apache-2.0
//
// What a save takes over of a training state. It is the one copy of what describes the tensors:
// everything that works for the save points into it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "varve/training_state.h"

namespace varve::internal {

struct SaveState {
  // Layouts are canonical, and strides of dense tensors are empty. `alias_of` is the name of the
  // tensor in `firsts`, empty for itself.
  TrainingState state;
  std::vector<uint32_t> shards;  // the number of each tensor among those of its name
  // For each tensor, the first of those that are tied to it. Often it is the tensor itself.
  std::vector<uint32_t> firsts;
};

// Precondition: the state is valid. It throws std::bad_alloc.
std::shared_ptr<const SaveState> MakeSaveState(TrainingState state);

}  // namespace varve::internal
