// SPDX-License-Identifier: Apache-2.0
//
// A warp for each chunk where there are many; where there are few, a block of warps for each, or
// most of the device would idle. Chunks are handed out one by one, the largest first, so that no
// long one comes last.
#include <algorithm>
#include <string>

#include "cuda/device_digest.h"
#include "cuda/digest_kernel.cuh"
#include "cuda/resources.h"

namespace varve::gpu {
namespace {

constexpr int kWarpsPerBlock = 8;       // of the kernel with a warp a chunk
constexpr int kSummingWarps = 8;        // of the other
constexpr int kBlocksPerProcessor = 3;  // of threads; both kernels fit so often

struct Job {
  DeviceChunk chunk;
  uint64_t place = 0;  // of its digest
};

// A batch as the kernels see it.
struct Batch {
  const Job* jobs;  // largest first
  uint32_t size;
  uint32_t* next;  // the first job that nobody has taken
  Digest* digests;
};

// Of a warp; all its lanes get it.
__device__ uint32_t TakeJob(uint32_t* next) {
  uint32_t taken = 0;
  if (Lane() == 0) taken = atomicAdd(next, 1);
  return __shfl_sync(kAllLanes, taken, 0);
}

__global__ void __launch_bounds__(kWarpsPerBlock* kLanes, kBlocksPerProcessor)
    DigestWithWarps(const Batch batch, const __grid_constant__ DigestKeys keys) {
  for (uint32_t i = TakeJob(batch.next); i < batch.size; i = TakeJob(batch.next)) {
    const Digest digest = DigestByWarp(batch.jobs[i].chunk, keys);
    if (Lane() == 0) batch.digests[batch.jobs[i].place] = digest;
  }
}

__global__ void __launch_bounds__((kSummingWarps + 1) * kLanes, kBlocksPerProcessor)
    DigestWithBlocks(const Batch batch, const __grid_constant__ DigestKeys keys) {
  __shared__ SharedSums<kSummingWarps> shared;
  __shared__ uint32_t taken;
  while (true) {
    if (threadIdx.x == 0) taken = atomicAdd(batch.next, 1);
    __syncthreads();
    const uint32_t i = taken;
    if (i >= batch.size) return;
    const Digest digest = DigestByBlock<kSummingWarps>(batch.jobs[i].chunk, keys, &shared);
    if (threadIdx.x == kSummingWarps * kLanes) batch.digests[batch.jobs[i].place] = digest;
    __syncthreads();  // all have read `taken`
  }
}

class DeviceDigesterImpl : public DeviceDigester {
 public:
  DeviceDigesterImpl(int device, uint64_t seed) : device_(device), keys_(MakeDigestKeys(seed)) {}
  ~DeviceDigesterImpl() override {
    if (is_pending_) (void)cudaEventSynchronize(done_.get());  // what is enqueued refers to this
  }

  Status Init(size_t max_chunks) {
    max_chunks = std::max<size_t>(max_chunks, 1);  // not all allocators know nothing
    const DeviceScope scope(device_);
    VARVE_RETURN_IF_ERROR(scope.status());
    VARVE_CUDA(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device_));
    VARVE_ASSIGN_OR_RETURN(jobs_, AllocatePinned<Job>(max_chunks));
    VARVE_ASSIGN_OR_RETURN(digests_, AllocatePinned<Digest>(max_chunks));
    VARVE_ASSIGN_OR_RETURN(device_jobs_, AllocateOnDevice<Job>(max_chunks));
    VARVE_ASSIGN_OR_RETURN(device_digests_, AllocateOnDevice<Digest>(max_chunks));
    VARVE_ASSIGN_OR_RETURN(next_, AllocateOnDevice<uint32_t>(1));
    VARVE_ASSIGN_OR_RETURN(done_, MakeEvent());
    return Status::Ok();
  }

  Status Enqueue(std::span<const DeviceChunk> chunks, cudaStream_t stream) override {
    VARVE_RETURN_IF_ERROR(CheckBatch(chunks));
    for (size_t i = 0; i < chunks.size(); ++i) jobs_[i] = {chunks[i], i};
    size_ = chunks.size();
    if (size_ == 0) return Status::Ok();
    const Status enqueued = EnqueueBatch(stream);
    is_pending_ = enqueued.ok();
    if (enqueued.ok()) return enqueued;
    (void)cudaStreamSynchronize(stream);  // a part may be enqueued, which refers to this
    size_ = 0;                            // and there is nothing to take
    return enqueued;
  }

  Result<std::span<const Digest>> Take() override {
    if (is_pending_) VARVE_CUDA(cudaEventSynchronize(done_.get()));
    is_pending_ = false;
    return std::span<const Digest>(digests_.data(), size_);
  }

 private:
  Status EnqueueBatch(cudaStream_t stream) {
    const std::span<Job> jobs(jobs_.data(), size_);
    std::ranges::stable_sort(jobs, std::ranges::greater(),
                             [](const Job& job) { return job.chunk.bytes; });
    const DeviceScope scope(device_);
    VARVE_RETURN_IF_ERROR(scope.status());
    VARVE_CUDA(cudaMemcpyAsync(device_jobs_.data(), jobs.data(), jobs.size_bytes(),
                               cudaMemcpyHostToDevice, stream));
    VARVE_CUDA(cudaMemsetAsync(next_.data(), 0, sizeof(uint32_t), stream));
    Launch(stream);
    VARVE_CUDA(cudaPeekAtLastError());
    VARVE_CUDA(cudaMemcpyAsync(digests_.data(), device_digests_.data(), size_ * sizeof(Digest),
                               cudaMemcpyDeviceToHost, stream));
    VARVE_CUDA(cudaEventRecord(done_.get(), stream));
    return Status::Ok();
  }

  Status CheckBatch(std::span<const DeviceChunk> chunks) const {
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

  void Launch(cudaStream_t stream) const {
    const auto size = static_cast<uint32_t>(size_);
    const Batch batch = {device_jobs_.data(), size, next_.data(), device_digests_.data()};
    const auto resident = static_cast<uint32_t>(processors_ * kBlocksPerProcessor);
    // As many warps as the device holds would each have one, at least.
    if (size >= resident * kWarpsPerBlock) {
      DigestWithWarps<<<resident, kWarpsPerBlock * kLanes, 0, stream>>>(batch, keys_);
    } else {
      DigestWithBlocks<<<std::min(size, resident), (kSummingWarps + 1) * kLanes, 0, stream>>>(
          batch, keys_);
    }
  }

  const int device_;
  const DigestKeys keys_;
  int processors_ = 0;
  size_t size_ = 0;  // of the batch
  bool is_pending_ = false;
  PinnedBuffer<Job> jobs_;
  PinnedBuffer<Digest> digests_;
  DeviceBuffer<Job> device_jobs_;
  DeviceBuffer<Digest> device_digests_;
  DeviceBuffer<uint32_t> next_;
  Event done_;
};

}  // namespace

Result<std::unique_ptr<DeviceDigester>> DeviceDigester::Create(int device, uint64_t seed,
                                                               size_t max_chunks) {
  auto digester = std::make_unique<DeviceDigesterImpl>(device, seed);
  VARVE_RETURN_IF_ERROR(digester->Init(max_chunks));
  return std::unique_ptr<DeviceDigester>(std::move(digester));
}

}  // namespace varve::gpu
