// SPDX-License-Identifier: Apache-2.0
#include "cuda/small_chunks.h"

#include <algorithm>

namespace varve::internal::gpu {
namespace {

constexpr uint64_t kUnit = 16;  // copies on a device start at multiples of it

}  // namespace

Result<std::unique_ptr<SmallChunks>> SmallChunks::Create(int device, size_t max_chunks) {
  std::unique_ptr<SmallChunks> small(new SmallChunks);
  const DeviceScope scope(device);
  VARVE_RETURN_IF_ERROR(scope.status());
  const size_t bytes = std::max<size_t>(max_chunks, 1) * kMaxBytes;
  VARVE_ASSIGN_OR_RETURN(small->copier_, DeviceCopier::Create(device, max_chunks, 0));
  VARVE_ASSIGN_OR_RETURN(small->gathered_, AllocateOnDevice<std::byte>(bytes));
  VARVE_ASSIGN_OR_RETURN(small->host_, AllocatePinned<std::byte>(bytes));
  VARVE_ASSIGN_OR_RETURN(small->done_, MakeEvent());
  return small;
}

SmallChunks::~SmallChunks() {
  const CaptureApart apart;
  if (done_ != nullptr) (void)cudaEventSynchronize(done_.get());
}

Status SmallChunks::SetChunks(std::span<const std::span<const std::byte>> chunks) {
  std::vector<DeviceChunk> copies;
  chunks_.clear();
  bytes_ = 0;
  for (const auto& chunk : chunks) {
    copies.push_back({chunk.data(), chunk.size(), gathered_.data() + bytes_});
    chunks_.emplace_back(host_.data() + bytes_, chunk.size());
    bytes_ += (chunk.size() + kUnit - 1) / kUnit * kUnit;
  }
  return copier_->SetChunks(copies);
}

Status SmallChunks::Begin(cudaStream_t stream) {
  if (bytes_ == 0) return Status::Ok();
  VARVE_RETURN_IF_ERROR(copier_->Enqueue(stream));
  VARVE_CUDA(
      cudaMemcpyAsync(host_.data(), gathered_.data(), bytes_, cudaMemcpyDeviceToHost, stream));
  VARVE_CUDA(cudaEventRecord(done_.get(), stream));
  return Status::Ok();
}

Status SmallChunks::Await() {
  VARVE_CUDA(cudaEventSynchronize(done_.get()));
  return Status::Ok();
}

}  // namespace varve::internal::gpu
