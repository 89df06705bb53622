// SPDX-License-Identifier: Apache-2.0
//
// What a state must be, to be saved or loaded. Stateless.
#pragma once

#include "varve/device_tensor_source.h"
#include "varve/training_state.h"

namespace varve {

// kInvalidArgument names what is wrong with a state that is to be saved, or loaded, in memory of
// the host and of `devices`, which may be null.
Status ValidateState(const TrainingState& state, const DeviceTensorSource* devices);
// Of one tensor: where its data lies.
Status ValidatePlace(const StateTensor& tensor, const DeviceTensorSource* devices);

}  // namespace varve
