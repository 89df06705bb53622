// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of tensors in the memory of GPUs. In the library varve::cuda.
//
//   VARVE_ASSIGN_OR_RETURN(const std::shared_ptr<varve::DeviceTensorSource> source,
//                          varve::CudaTensorSource::Create({.streams = {{0, stream}}}));
//   VARVE_ASSIGN_OR_RETURN(auto ckpt, varve::AsyncCheckpointer::Open("ckpt", {.devices = source}));
//   state.tensors.push_back({{.name = "wte", .shape = {V, C}}, wte, /*device=*/0});
//   VARVE_RETURN_IF_ERROR(ckpt->Prewarm(state));  // takes all memory, on the devices and pinned
//   ...
//   VARVE_RETURN_IF_ERROR(ckpt->BeginSave(step, state).status());  // returns at once
//   ForwardAndBackward(stream);
//   VARVE_RETURN_IF_ERROR(ckpt->AwaitStaged());   // as a rule at once, too
//   OptimizerStep(stream);                        // comes after the reads of the save
//
// The contract, on streams instead of threads: what has written the tensors is ordered before the
// given stream at BeginSave. What changes them is on the given stream after AwaitStaged, or waits
// for released(). Until then their memory stays allocated. No call waits for work on other streams
// than the given ones and its own, and none synchronizes a device.
//
// The device digests its tensors, and only chunks that differ from the step before leave it. While
// the trainer works, they are copied to the host from where they lie. Once it waits in AwaitStaged
// (as AsyncCheckpointer::Save does at once), they are gathered in memory of the device, as far as
// CudaOptions grants that.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "varve/device_tensor_source.h"
#include "varve/result.h"

namespace varve {

struct CudaStream {
  int device = 0;
  cudaStream_t stream = nullptr;  // of that device. The caller owns it
};

struct CudaOptions {
  // One for each device that has tensors. Must outlive the source.
  std::vector<CudaStream> streams;
  // Memory on each device, for chunks on their way while the trainer waits. 0: the trainer waits
  // until they are on the host.
  uint64_t staging_bytes = uint64_t{256} << 20;
  // Pinned memory of the host, for what is on its way to devices in a Restore. At least 32 MiB.
  uint64_t bounce_bytes = uint64_t{64} << 20;
};

// One checkpointer at a time uses a source, and must be closed before the source goes.
class CudaTensorSource : public DeviceTensorSource {
 public:
  // kUnavailable: there is no such device, or not the memory. kInvalidArgument: two streams of one
  // device.
  static Result<std::shared_ptr<CudaTensorSource>> Create(const CudaOptions& options);

  // After AwaitStaged: an event behind all reads of the device's tensors, for streams other than
  // the given one (cudaStreamWaitEvent). The source owns it. kInvalidArgument: no stream of this
  // device was given.
  virtual Result<cudaEvent_t> released(int device) const = 0;
};

}  // namespace varve
