// SPDX-License-Identifier: Apache-2.0
//
// Carries out a plan: reads the tensors of a checkpoint into the target's memory. A tensor that
// needs no change is read in place. Strided and converted tensors go through at most about 64 MiB
// of scratch memory.
#pragma once

#include "trainer_hooks/load/load_plan.h"
#include "trainer_hooks/load/load_through.h"
#include "varve/checkpoint.h"

namespace varve::internal {

// Adds a fault for each pair of tied targets that have different values in the checkpoint. It
// changes nothing in the target.
Status CheckTies(const CheckpointReader& reader, LoadPlan* plan);

// Fills every place of the plan. Reads in place go through `read`, as it says. `devices` may be
// null when no target is on a device. Precondition: the plan has no faults.
Status FillTargets(const CheckpointReader& reader, const LoadPlan& plan, RegionReader* read,
                   DeviceTensorSource* devices);

}  // namespace varve::internal
