// SPDX-License-Identifier: Apache-2.0
//
// Fills targets on devices. First it fills what ranks send from device to device. For the rest it
// reads pieces into memory that devices copy from. It fills one half while the other is copied.
#pragma once

#include <vector>

#include "trainer_hooks/load/load_plan.h"
#include "trainer_hooks/load/load_through.h"
#include "varve/checkpoint.h"
#include "varve/device_tensor_source.h"

namespace varve::internal {

// True when the host makes the master from the weight, because both are in its memory.
inline bool IsMadeOnHost(const MasterFill& fill) {
  return fill.weight.tensor->device == kHost && fill.master.tensor->device == kHost;
}

// Fills the targets of the plan that are on devices. Where a master or its weight is on a device,
// it also makes the master, from what it reads for the weight if that is on a device. It works in
// rounds (rounds.h). `devices` may be null when there are none. Collective if `read` is.
Status FillDevices(const CheckpointReader& reader, const LoadPlan& plan, RegionReader* read,
                   DeviceTensorSource* devices);

}  // namespace varve::internal
