// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_copy.h"

#include <algorithm>
#include <string>

#include "cuda/launch.h"

namespace varve::internal::gpu {
namespace {

// Short pieces give all processors work even when only some megabytes have changed.
constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

}  // namespace

Result<std::unique_ptr<DeviceCopier>> DeviceCopier::Create(int device, size_t max_chunks,
                                                           uint64_t max_bytes) {
  const size_t max_pieces = max_chunks + max_bytes / kPieceBytes + 1;
  std::unique_ptr<DeviceCopier> copier(new DeviceCopier(device, max_pieces));
  VARVE_RETURN_IF_ERROR(copier->Init());
  return copier;
}

DeviceCopier::~DeviceCopier() {
  const CaptureApart apart;
  if (done_ != nullptr) (void)cudaEventSynchronize(done_.get());  // what is enqueued refers to this
}

Status DeviceCopier::Init() {
  const DeviceScope scope(device_);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device_));
  VARVE_ASSIGN_OR_RETURN(pieces_, AllocatePinned<DeviceChunk>(max_pieces_));
  VARVE_ASSIGN_OR_RETURN(device_pieces_, AllocateOnDevice<DeviceChunk>(max_pieces_));
  VARVE_ASSIGN_OR_RETURN(next_, AllocateOnDevice<uint32_t>(1));
  VARVE_ASSIGN_OR_RETURN(done_, MakeEvent());
  return Status::Ok();
}

Status DeviceCopier::Enqueue(std::span<const DeviceChunk> chunks, cudaStream_t stream) {
  const DeviceScope scope(device_);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaEventSynchronize(done_.get()));
  size_t n = 0;
  for (const DeviceChunk& chunk : chunks) {
    for (uint64_t at = 0; at < chunk.bytes; at += kPieceBytes) {
      if (n == max_pieces_) {
        return Status::InvalidArgument("a batch of more than " + std::to_string(max_pieces_) +
                                       " pieces to copy");
      }
      pieces_[n++] = {chunk.data + at, std::min(kPieceBytes, chunk.bytes - at), chunk.copy + at};
    }
  }
  if (n == 0) return Status::Ok();
  VARVE_CUDA(cudaMemcpyAsync(device_pieces_.data(), pieces_.data(), n * sizeof(DeviceChunk),
                             cudaMemcpyHostToDevice, stream));
  VARVE_CUDA(cudaMemsetAsync(next_.data(), 0, sizeof(uint32_t), stream));
  const CopyBatch batch = {device_pieces_.data(), static_cast<uint32_t>(n), next_.data()};
  VARVE_CUDA(LaunchCopies(batch, processors_, stream));
  VARVE_CUDA(cudaEventRecord(done_.get(), stream));
  return Status::Ok();
}

}  // namespace varve::internal::gpu
