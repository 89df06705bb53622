// SPDX-License-Identifier: Apache-2.0
//
// Fills targets on devices: reads pieces into memory that devices copy from, one half of it while
// the other is on its way.
#pragma once

#include <vector>

#include "trainer_hooks/load/load_plan.h"
#include "trainer_hooks/load/load_through.h"
#include "varve/checkpoint.h"
#include "varve/device_tensor_source.h"

namespace varve {

// The master is made from the weight in the host's memory: both are there.
inline bool IsMadeOnHost(const MasterFill& fill) {
  return fill.weight.tensor->device == kHost && fill.master.tensor->device == kHost;
}

// Fills the targets of the plan that are on devices, and makes the masters of which one or its
// weight is, from what is read for the weight if that is on a device. In rounds as rounds.h has
// them. `devices` may be null when there are none. Collective as `read` is.
Status FillDevices(const CheckpointReader& reader, const LoadPlan& plan, RegionReader* read,
                   DeviceTensorSource* devices);

}  // namespace varve
