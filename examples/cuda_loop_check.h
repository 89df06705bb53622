// SPDX-License-Identifier: Apache-2.0
//
// What the contract of varve/cuda.h promises, tried out:
//
// - A loop overwrites its tensors as soon as it may, `rounds` times, with random contents. Then
// every
//   saved step is what the tensors held. It saves by turns with BeginSave and AwaitStaged, with
//   Save, and with overwriting from another stream behind released(). It does so with and without
//   staging on the device, and with less memory on the host than what changes.
// - A loop overwrites from BeginSave on. Then saves fail, and say that a tensor changed while it
// was
//   staged. The step before is still what it was.
#pragma once

#include <string>

#include "varve/status.h"

namespace cuda_example {

// `folder`: of the stores, made new. The error names the step and the tensor.
varve::Status CheckContract(const std::string& folder, int rounds);

}  // namespace cuda_example
