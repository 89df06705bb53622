// SPDX-License-Identifier: Apache-2.0
//
// The conditions on a state that is to be saved or loaded. Stateless.
#pragma once

#include "varve/device_tensor_source.h"
#include "varve/training_state.h"

namespace varve::internal {

// kInvalidArgument names what is wrong with a state that is to be saved or loaded. Its memory is
// the host's or that of `devices`, which may be null. `are_tensors_known`: the tensors were valid
// before and are the same, so only the rest is looked at.
Status ValidateState(const TrainingState& state, const DeviceTensorSource* devices,
                     bool are_tensors_known = false);
// Checks where the data of one tensor lies.
Status ValidatePlace(const StateTensor& tensor, const DeviceTensorSource* devices);

}  // namespace varve::internal
