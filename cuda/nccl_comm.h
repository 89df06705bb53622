// SPDX-License-Identifier: Apache-2.0
//
// A communicator of NCCL whose calls never wait for ever. No call of NCCL blocks, and every wait
// checks the state of the communicator and the clock.
//
// Thread rule: one thread at a time. The device of the communicator is the current one.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "varve/result.h"

namespace varve::internal::gpu {

// Returns ok, or the error of `call`. Work that NCCL has only started is ok.
Status FromNccl(ncclResult_t result, const char* call);

class NcclComm {
 public:
  // Collective. `id` is the same on all ranks.
  static Result<std::unique_ptr<NcclComm>> Join(const ncclUniqueId& id, int rank, int size,
                                                std::chrono::milliseconds timeout);
  // Unless it was aborted, waits a while for the other ranks to leave, too.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // Copies from `out` of the root to `in` of all ranks, on the stream. Collective.
  Status Broadcast(const std::byte* out, std::byte* in, size_t size, int root, cudaStream_t stream);
  // Sends to one rank and receives from one, at once, on the stream. A size of 0 does nothing. The
  // other rank must pass the same sizes.
  struct Outgoing {
    const std::byte* bytes = nullptr;
    size_t size = 0;
    int to = 0;
  };
  struct Incoming {
    std::byte* bytes = nullptr;
    size_t size = 0;
    int from = 0;
  };
  Status Exchange(const Outgoing& out, const Incoming& in, cudaStream_t stream);

  // How long later calls wait.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // Waits for the event, which was recorded after one of the calls above.
  Status Await(cudaEvent_t event);

  // Ends what is under way on the device. Call it after an error. The communicator cannot be used
  // afterwards.
  void Abort();

 private:
  NcclComm(ncclComm_t comm, std::chrono::milliseconds timeout) : comm_(comm), timeout_(timeout) {}

  // Waits until NCCL has nothing left to do on the host, and is_done returns true.
  Status Poll(std::chrono::milliseconds timeout, const std::function<Result<bool>()>& is_done);
  // Waits until the work that NCCL has started is launched.
  Status AwaitLaunch();

  ncclComm_t comm_;  // null = aborted
  std::chrono::milliseconds timeout_;
};

}  // namespace varve::internal::gpu

// Returns from a function that returns Status or Result when the call fails.
#define VARVE_NCCL(call) VARVE_RETURN_IF_ERROR(::varve::internal::gpu::FromNccl(call, #call))
