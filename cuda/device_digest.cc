// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_digest.h"

#include <algorithm>
#include <string>

namespace varve::internal::gpu {

Result<std::unique_ptr<DeviceDigester>> DeviceDigester::Create(int device, size_t max_chunks) {
  std::unique_ptr<DeviceDigester> digester(new DeviceDigester(device));
  VARVE_RETURN_IF_ERROR(digester->Init(max_chunks));
  return digester;
}

DeviceDigester::~DeviceDigester() {
  const CaptureApart apart;
  if (is_pending_) (void)cudaEventSynchronize(done_.get());  // what is enqueued refers to this
}

Status DeviceDigester::Init(size_t max_chunks) {
  max_chunks = std::max<size_t>(max_chunks, 1);  // not all allocators know nothing
  const DeviceScope scope(device_);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device_));
  VARVE_ASSIGN_OR_RETURN(jobs_, AllocatePinned<DigestJob>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(digests_, AllocatePinned<Digest>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(device_jobs_, AllocateOnDevice<DigestJob>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(device_digests_, AllocateOnDevice<Digest>(max_chunks));
  VARVE_ASSIGN_OR_RETURN(next_, AllocateOnDevice<uint32_t>(1));
  VARVE_ASSIGN_OR_RETURN(done_, MakeEvent());
  return Status::Ok();
}

Status DeviceDigester::Enqueue(uint64_t seed, std::span<const DeviceChunk> chunks,
                               cudaStream_t stream) {
  VARVE_RETURN_IF_ERROR(CheckBatch(chunks));
  for (size_t i = 0; i < chunks.size(); ++i) jobs_[i] = {chunks[i], i};
  size_ = chunks.size();
  if (size_ == 0) return Status::Ok();
  const Status enqueued = EnqueueBatch(seed, stream);
  is_pending_ = enqueued.ok();
  if (enqueued.ok()) return enqueued;
  (void)cudaStreamSynchronize(stream);  // a part may be enqueued, which refers to this
  size_ = 0;                            // and there is nothing to take
  return enqueued;
}

Result<std::span<const Digest>> DeviceDigester::Take() {
  if (is_pending_) VARVE_CUDA(cudaEventSynchronize(done_.get()));
  is_pending_ = false;
  return std::span<const Digest>(digests_.data(), size_);
}

Status DeviceDigester::CheckBatch(std::span<const DeviceChunk> chunks) const {
  if (is_pending_) {
    return Status::FailedPrecondition("the batch of digests before has not been taken");
  }
  if (chunks.size() > jobs_.size()) {
    return Status::InvalidArgument("a batch of " + std::to_string(chunks.size()) +
                                   " chunks, expected at most " + std::to_string(jobs_.size()));
  }
  const auto is_short = [](const DeviceChunk& chunk) { return chunk.bytes < kMinDigestBytes; };
  const auto found = std::ranges::find_if(chunks, is_short);
  if (found == chunks.end()) return Status::Ok();
  return Status::InvalidArgument("chunk " + std::to_string(found - chunks.begin()) + " has " +
                                 std::to_string(found->bytes) + " bytes, expected at least " +
                                 std::to_string(kMinDigestBytes));
}

Status DeviceDigester::EnqueueBatch(uint64_t seed, cudaStream_t stream) {
  const std::span<DigestJob> jobs(jobs_.data(), size_);
  std::ranges::stable_sort(jobs, std::ranges::greater(),
                           [](const DigestJob& job) { return job.chunk.bytes; });
  const DeviceScope scope(device_);
  VARVE_RETURN_IF_ERROR(scope.status());
  VARVE_CUDA(cudaMemcpyAsync(device_jobs_.data(), jobs.data(), jobs.size_bytes(),
                             cudaMemcpyHostToDevice, stream));
  VARVE_CUDA(cudaMemsetAsync(next_.data(), 0, sizeof(uint32_t), stream));
  const DigestBatch batch = {device_jobs_.data(), static_cast<uint32_t>(size_), next_.data(),
                             device_digests_.data()};
  VARVE_CUDA(LaunchDigests(batch, MakeDigestKeys(seed), processors_, stream));
  VARVE_CUDA(cudaMemcpyAsync(digests_.data(), device_digests_.data(), size_ * sizeof(Digest),
                             cudaMemcpyDeviceToHost, stream));
  VARVE_CUDA(cudaEventRecord(done_.get(), stream));
  return Status::Ok();
}

}  // namespace varve::internal::gpu
