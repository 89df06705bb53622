// SPDX-License-Identifier: Apache-2.0
//
// What a save takes over of a training state. It is the one copy of what describes the tensors:
// everything that works for the save points into it. Saves of one list of tensors share that copy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "varve/training_state.h"

namespace varve::internal {

// The tensors of a state. Nothing changes them once they are made.
struct StateTensors {
  // Layouts are canonical, and strides of dense tensors are empty. `alias_of` is the name of the
  // tensor in `firsts`, empty for itself.
  std::vector<StateTensor> tensors;
  std::vector<uint32_t> shards;  // the number of each tensor among those of its name
  // For each tensor, the first of those that are tied to it. Often it is the tensor itself.
  std::vector<uint32_t> firsts;

  // True when MakeStateTensors(given) would make the same. It allocates nothing unless a layout is
  // given in another way of writing.
  bool AreOf(std::span<const StateTensor> given) const;
};

struct SaveState {
  std::shared_ptr<const StateTensors> tensors;
  TrainingState rest;  // all of the state but its tensors
};

// Returns a copy of all but the tensors. It throws std::bad_alloc, as do the functions below.
TrainingState WithoutTensors(const TrainingState& state);
// Precondition of all: the state is valid.
std::shared_ptr<const StateTensors> MakeStateTensors(std::vector<StateTensor> tensors);
// Copies all but the tensors. Those of the state are `tensors`.
std::shared_ptr<SaveState> MakeSaveState(const TrainingState& state,
                                         std::shared_ptr<const StateTensors> tensors);
// Takes all of it over. It shares `known`, the tensors of an earlier save, when they are the same.
std::shared_ptr<SaveState> MakeSaveState(TrainingState&& state,
                                         std::shared_ptr<const StateTensors> known = nullptr);

}  // namespace varve::internal
