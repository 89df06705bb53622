// SPDX-License-Identifier: Apache-2.0
//
// The GPUs that have tensors of a training, as the source of a checkpointer. They become known when
// the first of these tensors does, which is after the checkpointer was opened. The trainer's
// streams are torch's current streams, and may be others at each call (CudaOptions::devices).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "varve/device_tensor_source.h"

namespace varve::python {

// The CUDA for which the package was built, such as "13.0". "": it was built without CUDA.
std::string CudaVersion();

// Before Use it is a source that knows no device. Thread rule: that of DeviceTensorSource. The
// trainer's thread makes the other calls.
class Devices : public DeviceTensorSource {
 public:
  // Null: the package was built without CUDA.
  static std::shared_ptr<Devices> Make();

  // Names the devices once, and allocates what saves and loads need there. kUnavailable: the driver
  // is too old, there are no kernels for a device, or there is not enough memory.
  // kFailedPrecondition: there was a call before.
  virtual Status Use(const std::vector<int>& devices) = 0;
  // The devices of Use. Empty: there was none.
  virtual const std::vector<int>& used() const = 0;

  // CudaTensorSource::Follow and Release for a stream of each used device, in their order. A stream
  // is a cudaStream_t as a number.
  virtual Status Follow(const std::vector<uintptr_t>& streams) = 0;
  virtual Status Release(const std::vector<uintptr_t>& streams) = 0;
};

}  // namespace varve::python
