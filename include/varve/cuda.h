// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads tensors in the memory of NVIDIA GPUs. This header needs the library varve::cuda.
//
//   VARVE_ASSIGN_OR_RETURN(const std::shared_ptr<varve::DeviceTensorSource> source,
//                          varve::CudaTensorSource::Create({.streams = {{0, stream}}}));
//   VARVE_ASSIGN_OR_RETURN(auto ckpt, varve::AsyncCheckpointer::Open("ckpt", {.devices = source}));
//   state.tensors.push_back({{.name = "wte", .shape = {V, C}}, wte, /*device=*/0});
//   VARVE_RETURN_IF_ERROR(ckpt->Prewarm(state));  // takes the memory that saves need
//   ...
//   VARVE_RETURN_IF_ERROR(ckpt->BeginSave(step, state).status());  // does not wait for this save
//   ForwardAndBackward(stream);
//   VARVE_RETURN_IF_ERROR(ckpt->AwaitStaged());   // usually does not wait
//   OptimizerStep(stream);                        // comes after the reads of the save
//
// The contract of varve/async_checkpointer.h says that the tensors must not change from BeginSave
// until AwaitStaged has returned. For tensors on GPUs this is a rule about work in CUDA streams.
// *The given stream* of a device is its stream in CudaOptions::streams. When the trainer calls
// BeginSave, the work that writes the tensors must be in the given stream already, or the given
// stream must already wait for it. Between BeginSave and the return of AwaitStaged, no stream may
// get work that changes or frees the tensors. When AwaitStaged has returned, the
// trainer may add such work to the given stream at once. Another stream must first wait
// (cudaStreamWaitEvent) for the event that released() returns then. A call waits for work in the
// given streams and in varve's own streams only. No call synchronizes a device.
//
// The device digests its tensors. Only chunks that differ from the last saved step are copied to
// the host. While the trainer works, they are copied straight from the tensors. While the trainer
// waits in AwaitStaged (or AsyncCheckpointer::Save), they are first copied to staging memory of the
// device, as far as CudaOptions::staging_bytes allows.
//
// The trainer's current stream may change, as PyTorch's does. Then name the device in
// CudaOptions::devices, and give no stream. The source then makes a stream of its own for that
// device, and this stream takes the place of the given one. The trainer adds no work to this
// stream. Follow and Release order this stream with the trainer's current one:
//
//   VARVE_ASSIGN_OR_RETURN(const auto source,
//                          varve::CudaTensorSource::Create({.devices = {0}}));
//   ...
//   VARVE_RETURN_IF_ERROR(source->Follow({0, stream}));  // before BeginSave, Save and Restore
//   VARVE_RETURN_IF_ERROR(ckpt->BeginSave(step, state).status());
//   ...
//   VARVE_RETURN_IF_ERROR(source->Follow({0, stream}));  // again: work was added since BeginSave
//   VARVE_RETURN_IF_ERROR(ckpt->AwaitStaged());
//   VARVE_RETURN_IF_ERROR(source->Release({0, stream}));  // later work waits for the reads
//
// Call Release after AsyncCheckpointer::Save, SetMetrics and SetTag, too. SetMetrics and SetTag may
// call AwaitStaged.
//
// varve's own streams have the lowest priority of the device. In CUDA the lowest priority is the
// greatest number (cudaDeviceGetStreamPriorityRange). cudaStreamCreate gives that priority, too. If
// the trainer makes its streams with a smaller number (cudaStreamCreateWithPriority), its kernels
// go before those of varve.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "varve/device_tensor_source.h"
#include "varve/result.h"

namespace varve {

// Names a stream of a device.
struct CudaStream {
  int device = 0;
  cudaStream_t stream = nullptr;  // a stream of that device. The caller owns it
};

struct CudaOptions {
  // The trainer's stream of each device that has tensors, one for each device. The streams must
  // outlive the source.
  std::vector<CudaStream> streams;
  // Devices that have tensors, but no entry in `streams`, because the trainer's stream on them may
  // change (Follow).
  std::vector<int> devices{};
  // Bytes of staging memory on each device, for chunks that are copied while the trainer waits. 0 =
  // AwaitStaged waits until these chunks are on the host.
  uint64_t staging_bytes = uint64_t{256} << 20;
  // How many blocks of 256 threads a digest kernel runs on each SM of the device, while the trainer
  // computes (BeginSave). One block has 128 registers a thread, so it leaves half of the SM's
  // registers to the trainer's kernels. 0 = as many blocks as there is room for. With 0 the digests
  // are ready sooner, but the trainer's kernels wait for them. If the trainer waits for the save
  // (AsyncCheckpointer::Save), the digest kernels always run as many blocks as there is room for.
  uint32_t digest_blocks = 1;
  // While the trainer computes, a device digests its tensors in parts. The number of parts is the
  // tensors' bytes / digest_part_bytes, rounded down. It is at least 1, and at most 8 or the number
  // of chunks, whichever is smaller. When a part is digested, the copies of its changed chunks
  // start.
  uint64_t digest_part_bytes = uint64_t{1} << 30;
  // Bytes of pinned host memory through which a Restore writes to devices. At least 32 MiB.
  uint64_t bounce_bytes = uint64_t{64} << 20;
};

// Thread rule: as DeviceTensorSource. One checkpointer at a time uses a source. Close the
// checkpointer before the source is destroyed.
class CudaTensorSource : public DeviceTensorSource {
 public:
  // kUnavailable: there is no such device, the device is too old (the kernels need compute
  // capability 8.0 or newer), or there is not enough memory. kInvalidArgument: the options name no
  // device, they name a device twice, bounce_bytes is too small, or digest_part_bytes is 0.
  static Result<std::shared_ptr<CudaTensorSource>> Create(const CudaOptions& options);

  // Returns an event that comes after all reads of the device's tensors. Call it after AwaitStaged,
  // to make other streams than the given one wait (cudaStreamWaitEvent). The source owns the event,
  // and uses the same event for all saves. kInvalidArgument: CudaOptions does not name this device.
  virtual Result<cudaEvent_t> released(int device) const = 0;

  // Makes the source's own stream of this device wait for the work that `stream` has now. The
  // trainer's thread calls it. kFailedPrecondition: `stream` is being captured. kInvalidArgument:
  // the device is not in CudaOptions::devices.
  virtual Status Follow(const CudaStream& stream) = 0;
  // Makes `stream` wait for all reads of the device's tensors. Call it after AwaitStaged. The
  // trainer's thread calls it. kInvalidArgument: CudaOptions does not name this device.
  // kFailedPrecondition: `stream` is being captured. If Release returns kInvalidArgument, it has
  // done nothing. After any other error it has waited until the reads were done.
  virtual Status Release(const CudaStream& stream) = 0;
};

}  // namespace varve
