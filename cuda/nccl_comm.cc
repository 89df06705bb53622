// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl_comm.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "cuda/cuda_check.h"

namespace varve::internal::gpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::microseconds kShortestSleep{10}, kLongestSleep{500};
// When a rank leaves, all that it has sent has usually been received.
constexpr milliseconds kLongestFarewell{5000};

}  // namespace

Status FromNccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return Status::Ok();
  std::string text = std::string("NCCL: ") + call + ": " + ncclGetErrorString(result);
  const char* const details = ncclGetLastError(nullptr);
  if (details != nullptr && *details != '\0') text += std::string(": ") + details;
  return Status::Unavailable(std::move(text));
}

Result<std::unique_ptr<NcclComm>> NcclComm::Join(const ncclUniqueId& id, int rank, int size,
                                                 milliseconds timeout) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t handle = nullptr;
  VARVE_NCCL(ncclCommInitRankConfig(&handle, size, id, rank, &config));
  std::unique_ptr<NcclComm> comm(new NcclComm(handle, timeout));
  if (Status status = comm->AwaitLaunch(); !status.ok()) {
    comm->Abort();
    return status.WithContext("ncclCommInitRankConfig");
  }
  return comm;
}

NcclComm::~NcclComm() {
  if (comm_ == nullptr) return;
  Status status = FromNccl(ncclCommFinalize(comm_), "ncclCommFinalize");
  if (status.ok()) status = Poll(std::min(timeout_, kLongestFarewell), [] { return true; });
  if (status.ok()) {
    (void)ncclCommDestroy(comm_);  // nobody could receive an error
  } else {
    Abort();
  }
}

void NcclComm::Abort() {
  if (comm_ != nullptr) (void)ncclCommAbort(std::exchange(comm_, nullptr));
}

Status NcclComm::Broadcast(const std::byte* out, std::byte* in, size_t size, int root,
                           cudaStream_t stream) {
  VARVE_NCCL(ncclBroadcast(out, in, size, ncclUint8, root, comm_, stream));
  return AwaitLaunch();
}

Status NcclComm::Exchange(const Outgoing& out, const Incoming& in, cudaStream_t stream) {
  VARVE_NCCL(ncclGroupStart());
  Status status;
  if (out.size > 0) {
    status = FromNccl(ncclSend(out.bytes, out.size, ncclUint8, out.to, comm_, stream), "ncclSend");
  }
  if (status.ok() && in.size > 0) {
    status = FromNccl(ncclRecv(in.bytes, in.size, ncclUint8, in.from, comm_, stream), "ncclRecv");
  }
  // This must follow an error, too. Otherwise the thread would stay in the group.
  const Status ended = FromNccl(ncclGroupEnd(), "ncclGroupEnd");
  VARVE_RETURN_IF_ERROR(status);
  VARVE_RETURN_IF_ERROR(ended);
  return AwaitLaunch();
}

Status NcclComm::AwaitLaunch() {
  return Poll(timeout_, [] { return true; });
}

Status NcclComm::Await(cudaEvent_t event) {
  return Poll(timeout_, [event]() -> Result<bool> {
    const cudaError_t error = cudaEventQuery(event);
    if (error == cudaErrorNotReady) return false;
    VARVE_RETURN_IF_ERROR(ToStatus(error, "cudaEventQuery"));
    return true;
  });
}

Status NcclComm::Poll(milliseconds timeout, const std::function<Result<bool>()>& is_done) {
  const auto deadline = Clock::now() + timeout;
  auto sleep = kShortestSleep;
  while (true) {
    ncclResult_t state = ncclSuccess;
    VARVE_NCCL(ncclCommGetAsyncError(comm_, &state));
    VARVE_RETURN_IF_ERROR(FromNccl(state, "ncclCommGetAsyncError"));
    VARVE_ASSIGN_OR_RETURN(const bool done, is_done());
    if (done && state == ncclSuccess) return Status::Ok();
    if (Clock::now() >= deadline) {
      return Status::Unavailable("nothing came over NCCL within " +
                                 std::to_string(timeout.count()) + " ms");
    }
    std::this_thread::sleep_for(sleep);
    sleep = std::min(2 * sleep, kLongestSleep);
  }
}

}  // namespace varve::internal::gpu
