// SPDX-License-Identifier: Apache-2.0
//
// Carries a plan out: reads the tensors of a checkpoint into the target's memory. What fits as it
// is is read in place; strided and converted tensors go through at most some 64 MiB of scratch
// memory.
#pragma once

#include "trainer_hooks/load/load_plan.h"
#include "trainer_hooks/load/load_through.h"
#include "varve/checkpoint.h"

namespace varve {

// Adds a fault for each pair of tied targets that the checkpoint has different values for. Changes
// nothing of the target.
Status CheckTies(const CheckpointReader& reader, LoadPlan* plan);

// Fills every place of the plan; what is read in place through `read`, as it says. `devices` may be
// null when no target is on one. Precondition: the plan has no faults.
Status FillTargets(const CheckpointReader& reader, const LoadPlan& plan, RegionReader* read,
                   DeviceTensorSource* devices);

}  // namespace varve
