// SPDX-License-Identifier: Apache-2.0
//
// A communicator of NCCL of which no call waits for ever: none blocks, and every wait looks at what
// NCCL says of the communicator, and at the clock.
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

namespace varve::gpu {

// Ok, also for what NCCL has only begun, or what `call` failed with.
Status FromNccl(ncclResult_t result, const char* call);

class NcclComm {
 public:
  // Collective; `id` is the same on all ranks.
  static Result<std::unique_ptr<NcclComm>> Join(const ncclUniqueId& id, int rank, int size,
                                                std::chrono::milliseconds timeout);
  // Waits a while for the other ranks to leave, too, unless it has been aborted.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // On the stream, collective. From `out` of the root into `in` of all.
  Status Broadcast(const std::byte* out, std::byte* in, size_t size, int root, cudaStream_t stream);
  // On the stream: to one rank and from one, at once. Nothing is done for a size of 0, and the
  // other rank passes the same sizes.
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

  // Until the event, which was recorded after a call from above.
  Status Await(cudaEvent_t event);

  // Ends what is under way on the device; after an error, as the communicator is of no use then.
  void Abort();

 private:
  NcclComm(ncclComm_t comm, std::chrono::milliseconds timeout) : comm_(comm), timeout_(timeout) {}

  // Until NCCL has nothing left to do on the host, and is_done.
  Status Poll(std::chrono::milliseconds timeout, const std::function<Result<bool>()>& is_done);
  // Until what NCCL has begun is launched.
  Status AwaitLaunch();

  ncclComm_t comm_;  // null: aborted
  const std::chrono::milliseconds timeout_;
};

}  // namespace varve::gpu

// Returns from a function that returns Status or Result when the call fails.
#define VARVE_NCCL(call) VARVE_RETURN_IF_ERROR(::varve::gpu::FromNccl(call, #call))
