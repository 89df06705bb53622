// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_copy.h"

#include <algorithm>
#include <string>

namespace varve::internal::gpu {
namespace {

// Short pieces give all processors work even when only some megabytes have changed.
constexpr uint64_t kCopyBytes = uint64_t{256} << 10;

}  // namespace

Result<std::unique_ptr<DeviceCopier>> DeviceCopier::Create(int device, size_t max_chunks,
                                                           uint64_t max_bytes) {
  const size_t max_pieces = max_chunks + max_bytes / kCopyBytes + 1;
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
  VARVE_CUDA(LoadKernels(&shapes_));
  VARVE_ASSIGN_OR_RETURN(pieces_, AllocatePinned<DeviceChunk>(max_pieces_));
  VARVE_ASSIGN_OR_RETURN(device_pieces_, AllocateOnDevice<DeviceChunk>(max_pieces_));
  VARVE_ASSIGN_OR_RETURN(next_, AllocateOnDevice<uint32_t>(1));
  VARVE_ASSIGN_OR_RETURN(done_, MakeEvent());
  return Status::Ok();
}

Status DeviceCopier::SetChunks(std::span<const DeviceChunk> chunks) {
  const DeviceScope scope(device_);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaEventSynchronize(done_.get()));
  are_pieces_there_ = false;
  num_pieces_ = 0;
  size_t n = 0;
  for (const DeviceChunk& chunk : chunks) {
    for (uint64_t at = 0; at < chunk.bytes; at += kCopyBytes) {
      if (n == max_pieces_) {
        return Status::InvalidArgument("a batch of more than " + std::to_string(max_pieces_) +
                                       " pieces to copy");
      }
      pieces_[n++] = {chunk.data + at, std::min(kCopyBytes, chunk.bytes - at), chunk.copy + at};
    }
  }
  num_pieces_ = n;
  return Status::Ok();
}

Status DeviceCopier::Enqueue(cudaStream_t stream) {
  if (num_pieces_ == 0) return Status::Ok();
  const DeviceScope scope(device_);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaEventSynchronize(done_.get()));
  if (!are_pieces_there_) {
    VARVE_CUDA(cudaMemcpyAsync(device_pieces_.data(), pieces_.data(),
                               num_pieces_ * sizeof(DeviceChunk), cudaMemcpyHostToDevice, stream));
  }
  VARVE_CUDA(cudaMemsetAsync(next_.data(), 0, sizeof(uint32_t), stream));
  const CopyBatch batch = {device_pieces_.data(), static_cast<uint32_t>(num_pieces_), next_.data()};
  VARVE_CUDA(LaunchCopies(batch, shapes_.processors * shapes_.copy_blocks, stream));
  VARVE_CUDA(cudaEventRecord(done_.get(), stream));
  are_pieces_there_ = true;
  return Status::Ok();
}

}  // namespace varve::internal::gpu
