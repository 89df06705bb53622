// SPDX-License-Identifier: Apache-2.0
//
// In place of devices.cc where there is no CUDA toolkit.
#include "python/src/devices.h"

namespace varve::python {

std::string CudaVersion() { return ""; }

std::shared_ptr<Devices> Devices::Make() { return nullptr; }

}  // namespace varve::python
